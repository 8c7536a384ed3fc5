"""Every error that a user can cause. Messages name the operation, the argument, what was found and what is allowed."""


class BurnishError(Exception):
    """Base of all errors with a cause outside Burnish; the command line prints them as one line."""


class ModelError(BurnishError):
    """A model file or object that cannot be read, or that is not valid by its own format's rules."""


class UnsupportedOperator(ModelError):  # noqa: N818 - reads as the refusal it is
    """A valid model that uses an operator, attribute or dtype which Burnish does not implement."""


class ArtifactError(BurnishError):
    """A compiled file that is truncated, altered, of another format version, or made for another machine."""


class ClosedError(ArtifactError):
    """A compiled model that was closed, which answers no question any more."""


class UnsupportedMethod(BurnishError):  # noqa: N818 - reads as the refusal it is
    """A method that this kind of compiled model has not; the message names kind, method, and what to do instead."""


class InputError(BurnishError):
    """An array passed to a compiled model with the wrong name, shape, dtype or device; or one that is missing."""


class UnknownStateError(InputError, KeyError):
    """A name of which a module has no state; the message names those that it has. Also a KeyError, as of mappings."""

    __str__ = Exception.__str__  # a KeyError shows its message quoted


class ScheduleError(BurnishError):
    """A schedule primitive whose arguments are invalid or which would break a dependence."""


class VerificationError(BurnishError):
    """A graph or loop program that violates its grammar, or an answer that differs from the reference."""


class TargetError(BurnishError):
    """An unknown target, or one that this machine or this build of LLVM cannot serve."""


class RecordError(BurnishError):
    """A tuning record that cannot be read, or that was made for another operator or machine than it is asked for."""


class RuleError(BurnishError):
    """A substitution, an axiom or a proof that cannot be read, does not type, is false, or does not prove its claim."""


class DataError(BurnishError, ValueError):
    """Training or prediction data that cannot be used: its file, shape, labels, groups, categories or values."""


class ParameterError(BurnishError, ValueError):
    """A parameter of training or of a search: unknown, out of its range, or at odds with another or with the data."""


class CheckpointError(BurnishError):
    """A checkpoint of training that is truncated, altered, of another form, or of another model or data."""


class DivergenceError(BurnishError):
    """Training whose loss is no finite number; ``step`` is the number of the call, from 1 on.

    ``module``: the compiled step, whose states are as they were before that call.
    """

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step
        self.module: object = None


class WorkerError(BurnishError):
    """A worker of a distributed run that died, failed, left, was not heard of in time, or disagrees about a call."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank  # whose fault it is, as far as is known


class PlanError(BurnishError):
    """A machine or a parallel strategy that cannot be read, makes no sense, or is for another model or machine."""


class EngineError(BurnishError):
    """Operation on arrays that failed where it ran, raised where its result is waited for; or that waits for itself."""


class DeviceError(BurnishError):
    """A device pool that has no such device, none that lives, or that cannot be reached or does not take the key."""


class MissingDependencyError(BurnishError):
    """An optional package that is needed for what was asked, but is not installed."""
