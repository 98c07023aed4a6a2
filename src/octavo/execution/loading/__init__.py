"""From a model on disk to its sizes, its architecture and its weights: ``load_model``."""

from octavo.execution.loading.architecture import Architecture, RopeScaling
from octavo.execution.loading.load import LoadedModel, WeightDtype, load_model
from octavo.execution.loading.weights import Quantization, WeightMatrix, Weights

__all__ = [
    "Architecture",
    "LoadedModel",
    "Quantization",
    "RopeScaling",
    "WeightDtype",
    "WeightMatrix",
    "Weights",
    "load_model",
]
