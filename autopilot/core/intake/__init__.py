"""From the batches of collectors to one trusted observation.

Theory of operation. Each collector answers with a `Batch`, in any order and at any age. Intake takes the parts through
five steps:

1. contain.py makes bad objects harmless, one by one, so that the others stay in use;
2. assemble.py joins the batches into one snapshot with ages and gaps; gpu_faults.py weighs the errors of GPUs;
3. listing.py and sight.py compare each list with the last trusted one: absence counts only in a fresh, complete and
   plausible list;
4. clock.py judges the clock of the tick, and moves the times in memory along with a clock that was set;
5. commands.py orders the commands of people and puts them into memory.

Doubt blocks or is written down: a missing part is infinitely old, an unreadable object is a gap, an untrusted list or
clock makes the tick blind. Intake makes no decision about a workload.
"""
