"""DeviceLost: the board disconnected; the lease holder retries on another."""


class DeviceLost(Exception):  # noqa: N818 - an outcome
    """A board that has gone, hangs, or sends what is no answer, or a lease that has ended: nothing is known of what was
    asked last. The message names the device.

    No error of Burnish: what is caught as such would be taken for the fault of a kernel.
    """
