"""The one search for places: shapes, nodes and GPUs to hold them, the score, and the what-if copy of the books.

Theory of operation. A `Shape` (shapes.py) is the request of one gang; gangs of equal shape fit or fail together. A
`WhatIf` (whatif.py) holds the capacity books of one snapshot and takes changes back bit for bit. A search reads the
books and answers with a `Fit` (layout, nodes, score and its terms) or a `Miss` (reason code, GPUs there, GPUs needed);
it books nothing. The caller books a `Fit` with `WhatIf.place`, so that the next search of the tick sees it.

| file | places for |
|---|---|
| fit.py | any gang |
| kinds/ | whole GPUs, shares of GPUs, and MIG instances: one file each, also for gangs of differing members |
| on_demand.py | MIG instances that claims could have made (dynamic MIG) |
| vacate.py | GPUs on their way from victims to newcomers |

Searches ask of free GPUs now and of capacity in the future alike: the caller gives the `room` of each node. Quota,
priority and time are the business of other packages. Equal input gives the equal answer: ties go to the lowest row.
"""
