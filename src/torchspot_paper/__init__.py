"""The paper's experiments: one file for each figure, run by `python -m torchspot_paper`."""
