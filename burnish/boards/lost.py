"""DeviceLost: the board disconnected; the lease holder retries on another."""


class DeviceLost(Exception):  # noqa: N818 - an outcome
    """Lost board: it has gone, hangs, or sends no valid answer, or its lease has ended. Nothing is known of what was
    asked last. The message names the device.

    No error of Burnish: what is caught as such would be taken for the fault of a kernel.
    """
