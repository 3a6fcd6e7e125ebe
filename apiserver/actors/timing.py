"""Latencies of the actors. Measured on a real control plane of 1.36.2; the comments give the observations."""

from __future__ import annotations

# Job controller: the status of a new suspended Job was there 5 ms after the answer; pod changes are batched for 1 s.
JOB_SYNC_S = 0.004
JOB_WRITE_S = 0.015  # 12 to 60 ms for each write of a pod or a status
JOB_BATCH_S = 1.0  # SyncJobBatchPeriod
JOB_RETRY_S = 1.0  # DefaultJobApiBackOff, doubled up to MaxJobApiBackOff
JOB_LAST_RETRY_S = 60.0

# Scheduler: 20 to 130 ms from the creation of a pod to its node; a waiting pod 0.3 s after room appears.
SCHEDULE_S = 0.012
SCHEDULE_EACH_S = 0.005  # 80 pods were bound within 0.7 s of the last gate
PREEMPT_S = 0.03  # from the nomination to the first victim
BACKOFF_FIRST_S = 1.0  # podInitialBackoffSeconds
BACKOFF_LAST_S = 10.0  # podMaxBackoffSeconds

# Kubelet: 70 ms from the binding to the first status, 0.3 s more to Running; 0.49 to 0.62 s from the deletion to the
# last phase, or the time that the pod states and 0.09 s; 50 ms from there to the removal.
KUBELET_TAKES_S = 0.07
KUBELET_STARTS_S = 0.3
KUBELET_STOPS_S = 0.5
KUBELET_REMOVES_S = 0.05
KUBELET_NOTICES_S = 0.05

# Controllers of kube-controller-manager act on what they watch within milliseconds.
CONTROLLER_S = 0.004
DISRUPTED_TIMEOUT_S = 120.0  # DeletionTimeout of the disruption controller

# Nodes: Ready turns Unknown 50 s after the last heartbeat (49 s seen, checked every 5 s), the taints follow within
# 0.3 s; a new node loses not-ready:NoSchedule 0.2 s after Ready=True; a cordon is a taint within 1 s.
NODE_GRACE_S = 50.0
NODE_BEAT_S = 5.0
NODE_CHECK_S = 5.0
NODE_EVICT_S = 0.1  # NodeEvictionPeriod: from the condition to the taint NoExecute
NODE_EVERY_S = 10.0  # node-eviction-rate 0.1: between two nodes of a zone
NODE_EVERY_SLOW_S = 100.0  # secondary-node-eviction-rate, in large zones most of whose nodes are lost
POD_GC_S = 20.0  # gcCheckPeriod
POD_GC_QUARANTINE_S = 40.0
NODE_TTL_S = 0.01
NODE_TAINT_S = 0.02

# A service account, and the certificate bundle of a namespace, appear a moment after the namespace.
NODE_READY_S = 0.055
NODE_LABELS_S = 0.045
GARBAGE_S = 0.16  # from an owner that is gone to the deletion of its dependents: 0.1 to 0.45 s seen

# MIG manager: the waits are those of its source; the times of a reboot, a cut and a start of the plugin are assumed.
MIG_CLIENTS_S = 300.0
MIG_LOOK_S = 1.0
MIG_HOST_CLIENTS_S = 30.0
MIG_APPLY_S = 5.0
MIG_PLUGIN_S = 3.0
MIG_REBOOT_S = 240.0

# Device plugin: the retry after a failed MPS daemon is that of its source; the other times are assumed.
PLUGIN_RESTART_S = (10.0, 30.0)
PLUGIN_RETRY_S = 30.0
PLUGIN_LABELS_S = 5.0  # feature discovery, from its signal to the label
PLUGIN_MOUNT_S = 60.0  # until a changed ConfigMap is in the pods that mount it
