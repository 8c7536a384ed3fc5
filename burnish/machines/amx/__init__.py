"""Intel AMX: the matrix unit of some x86 cores, with what a process must ask the kernel for before it may use it."""
