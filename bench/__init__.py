"""Measurements of speed, memory and overhead. Run them from the folder of the repository.

`make bench` runs `overhead`, `models` and `drawing`; each module of this folder that is a program
prints what it measures with `--help`. Among others:

- `python -m bench.overhead`: trials a second, start of a driver, answers of the API.
- `python -m bench.delivery`: ended trials a second that reach MLflow.
- `python -m bench.models`: time and memory of a training step, beside plain loops and `nn.LSTM`.
- `python -m bench.drawing`: time to draw a batch, beside the training step that uses it.
- `python -m bench.weight`: lines, rooms and arrows of folders, of this commit or another.
- `python -m bench.learning`: which models learn two short tasks; it needs a running service.
"""
