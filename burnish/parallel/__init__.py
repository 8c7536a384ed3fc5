"""Planning of parallel training: machines, strategies of the SOAP space, and simulated steps (thesis-jia chapter 3)."""
