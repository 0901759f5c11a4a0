"""What every benchmark stands on: servers and processes of its own, blocks in turn, cheap clients, exact counts, a report.

``site`` (servers and processes under a folder that goes), ``system`` (the product's processes on it), ``owners`` (whom the
load is of), ``client`` and ``load`` (cheap HTTP), ``arms`` (subject and baselines in turn), ``quantiles``, ``stores``,
``broker``, ``processes`` and ``units`` (exact counts), ``machine``, ``report``.
"""
