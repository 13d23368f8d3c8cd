"""The errors quietgrad raises when it refuses to go on.

Every message names what was found, where, what was expected and what to do. Nothing is released
by a call that raises one of these.
"""


class QuietgradError(RuntimeError):
    """Base of all errors that mean: continuing could void the privacy claim."""


class UnsupportedOperationError(QuietgradError):
    """A trainable parameter is used in a way for which no exact rule exists."""


class ChangedGradientError(UnsupportedOperationError):
    """A gradient was written to after it had been taken for clipping.

    Args:
        parameter: the name of the one it is on its way to.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"a gradient on its way to parameter '{parameter}', or an input of its layer, was "
            "changed in place during the backward pass, after it had been taken for clipping: a "
            "hook, or the backward of a custom autograd function, writes to what it was given. Let "
            "it return a new tensor (g * 2 instead of g.mul_(2))."
        )


class ChangedSampleError(UnsupportedOperationError):
    """What a gradient is made of was written to before the gradient was clipped for good.

    Args:
        parameter: whose gradient.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"an input of the layer of parameter '{parameter}' was changed in place after "
            "engine.backward(): a sample of the batch has a gradient that is not finite, or nearly "
            "so, which a device tells late, and the batch was to be clipped again. Nothing was "
            "released. Make a new tensor for each micro-batch (x = x.to(device)), or write to this "
            "one after engine.step()."
        )


class SampleMixingError(QuietgradError):
    """Rows of one sample depend on another sample, or cannot be mapped to samples at all."""


class LossError(QuietgradError, ValueError):
    """What was passed to ``backward`` is not one differentiable loss per sample."""


class StrayGradientError(QuietgradError):
    """A gradient flowed, or was about to be applied, outside the engine."""


class EscapedGradientError(StrayGradientError):
    """A gradient of the engine's own backward pass went past the clipping."""


class BoundError(QuietgradError):
    """A clipped gradient, or a sum of them, is larger than what the noise covers."""


class MemoryExhaustedError(QuietgradError):
    """A micro-batch does not fit in memory."""


class EngineStateError(QuietgradError):
    """The engine's verbs were called out of order, or after a guard was violated."""


class TrainableSetError(QuietgradError):
    """The set of trainable parameters differs from the one the engine was attached to."""


class DistributedTrainingError(QuietgradError):
    """Training is spread over several ranks or devices in a way that is not supported.

    Args:
        found: what shows it, and where.
        remedy: what to do.
        reason: why that is no good.
    """

    def __init__(
        self,
        found: str,
        remedy: str,
        reason: str = "each rank or device would sample, clip and add noise for itself, and the "
        "accounting would not hold for what they share",
    ) -> None:
        super().__init__(f"{found}: {reason}. {remedy}")


class RankError(QuietgradError):
    """Another rank cannot go on, or is gone."""


class BudgetExhaustedError(QuietgradError):
    """Another step would spend more epsilon than was promised."""


class LedgerError(QuietgradError):
    """The ledger cannot be trusted, or cannot be written."""


class SamplingError(QuietgradError):
    """A sampler of the user's own draws otherwise than was declared for it."""


class IntegrationError(QuietgradError):
    """A training framework is used in a way that would void the guarantee, or have no effect."""


class DataError(QuietgradError):
    """A data set that is not there, or not what it should be."""


class MissingExtraError(ImportError):
    """What was asked for needs a package that quietgrad itself does not."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'quietgrad[{extra}]'")
