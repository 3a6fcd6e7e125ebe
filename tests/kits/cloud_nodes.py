"""Labels of GPU nodes as clouds, autoscalers and topology discovery write them, without GPU feature discovery."""

from __future__ import annotations

GKE = {
    "cloud.google.com/gke-nodepool": "a3",
    "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
    "cloud.google.com/gke-accelerator-count": "8",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gce-topology-block": "b1",
    "cloud.google.com/gce-topology-subblock": "s1",
    "cloud.google.com/gce-topology-host": "h1",
    "node.kubernetes.io/instance-type": "a3-highgpu-8g",
    "topology.kubernetes.io/zone": "us-central1-a",
}
GKE_PREEMPTIBLE = {
    "cloud.google.com/gke-nodepool": "old",
    "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
    "cloud.google.com/gke-preemptible": "true",
    "failure-domain.beta.kubernetes.io/zone": "us-central1-b",
}
EKS = {
    "eks.amazonaws.com/nodegroup": "p5",
    "eks.amazonaws.com/capacityType": "SPOT",
    "node.kubernetes.io/instance-type": "p5.48xlarge",
    "topology.k8s.aws/network-node-layer-1": "nn-1",
    "topology.k8s.aws/network-node-layer-2": "nn-2",
    "topology.k8s.aws/network-node-layer-3": "nn-3",
    "topology.k8s.aws/ultraserver-id": "us-1",
    "topology.kubernetes.io/zone": "us-east-1a",
}
EKS_AUTO = {
    "eks.amazonaws.com/instance-gpu-name": "h100",
    "eks.amazonaws.com/instance-gpu-count": "8",
    "eks.amazonaws.com/instance-gpu-memory": "81920",
    "karpenter.sh/capacity-type": "spot",
    "karpenter.sh/nodepool": "gpu",
}
KARPENTER = {
    "karpenter.k8s.aws/instance-gpu-name": "a100",
    "karpenter.k8s.aws/instance-gpu-count": "8",
    "karpenter.k8s.aws/instance-gpu-memory": "40960",
    "karpenter.sh/capacity-type": "on-demand",
    "karpenter.sh/nodepool": "gpu",
}
EKSCTL = {"node-lifecycle": "spot", "node.kubernetes.io/instance-type": "p4d.24xlarge"}
AKS = {
    "kubernetes.azure.com/agentpool": "nd",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5",
}
OKE = {
    "node.kubernetes.io/instance-type": "BM.GPU.H100.8",
    "oci.oraclecloud.com/rdma.hpc_island_id": "i1",
    "oci.oraclecloud.com/rdma.network_block_id": "n1",
    "oci.oraclecloud.com/rdma.local_block_id": "l1",
}
COREWEAVE = {
    "backend.coreweave.cloud/fabric": "f1",
    "backend.coreweave.cloud/superpod": "s1",
    "backend.coreweave.cloud/leafgroup": "l1",
    "ds.coreweave.com/nvlink.domain": "d1",
}
COREWEAVE_IB = {
    "ib.coreweave.cloud/fabric": "f1",
    "ib.coreweave.cloud/superpod": "s1",
    "ib.coreweave.cloud/leafgroup": "l1",
}
TOPOGRAPH_01 = {
    "network.topology.nvidia.com/accelerator": "nvl1",
    "network.topology.nvidia.com/block": "s1",
    "network.topology.nvidia.com/spine": "s2",
    "network.topology.nvidia.com/datacenter": "s3",
}
TOPOGRAPH_05 = {
    "network.topology.nvidia.com/leaf": "s1",
    "network.topology.nvidia.com/spine": "s2",
    "network.topology.nvidia.com/core": "s3",
}
TOPOGRAPH_10 = {
    "accelerator.topograph.run/domain": "nvl1",
    "fabric.topograph.run/tier-0": "s1",
    "fabric.topograph.run/tier-1": "s2",
    "fabric.topograph.run/tier-2": "s3",
}
