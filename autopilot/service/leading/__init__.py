"""One leader among several controllers of a cluster: the Lease, the fence, and the state handed to the next leader."""
