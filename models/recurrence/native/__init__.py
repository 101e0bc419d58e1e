"""The steps of the fast recurrences as C++, compiled at first use for the machine at hand.

`library.py` compiles and loads; `ungated.py`, `gated.py` and `paired.py` each hand tensors to the
library made from the `.cpp` file of the same name. The `.h` files are shared by the libraries.
"""
