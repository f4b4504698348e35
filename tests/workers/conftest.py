"""Fixtures of the workers' tests."""

from pathlib import Path

import pytest

from harness.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the hub's layout that holds the tiny model and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
