"""One leader among several controllers of a cluster: the Lease, the fence, and what the next leader takes over."""
