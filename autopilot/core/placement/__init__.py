"""The one search for places: shapes, the nodes and GPUs that hold them, the score, and the what-if copy of the books.

It searches free GPUs and capacity that comes free later, for equal and for differing members. It knows no quota, no
priority and no time.
"""
