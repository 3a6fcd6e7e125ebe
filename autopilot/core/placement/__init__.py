"""Where a gang fits: the what-if copy of the cluster's books, and the search for a fit with its score.

Placement reads shapes and free capacity. It knows no quota, priority or time, and changes nothing but the what-if
that it is given.
"""
