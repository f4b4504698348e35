"""radixd: a language-model daemon that never computes the same prefix twice."""

__version__ = "0.1.0"
