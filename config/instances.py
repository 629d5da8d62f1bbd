"""What each instance type is: the one table. Launch templates, pod limits, MFU and checks derive from it.

Read on 2026-11-30. Sources of the columns, unless a row says otherwise:
- GPUs, GPU memory, vCPUs, memory, NVMe: https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html
- network cards, interfaces and addresses an interface: `DescribeInstanceTypes`, as generated into
  https://github.com/aws/karpenter-provider-aws/blob/main/pkg/providers/instancetype/zz_generated.vpclimits.go
- EFA interfaces and which cards take one: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
- allocatable memory: Karpenter's estimate, https://karpenter.sh/docs/reference/instance-types/
- dense bf16 peak: https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/utils.py
- price: on demand, Linux, us-east-1, US dollars, 2026-07-20, from the AWS price list as generated into
  https://github.com/aws/karpenter-provider-aws/blob/main/pkg/providers/pricing/zz_generated.pricing_aws.go
- all-reduce of two nodes, the least that is published:
  https://github.com/aws-ia/terraform-aws-eks-blueprints/blob/main/patterns/nvidia-gpu-efa/README.md (p5.48xlarge) and
  https://github.com/aws-samples/aws-do-eks, Container-Root/eks/deployment/kubeflow/mpi-operator/test (p6-b200.48xlarge)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """One instance type: counts a node, sizes with their unit in the name."""

    gpu: str
    gpus_per_node: int
    gpu_memory_mib: int
    peak_bf16_tflops_per_gpu: int  # dense, without sparsity
    vcpus: int
    memory_gib: int
    allocatable_memory_mib: int  # what pods and hugepages share
    network_cards: int
    interfaces_per_card: int
    addresses_per_interface: int
    efa_interfaces_per_node: int
    efa_on_card_0: bool
    nvme_disks: int
    nvme_gb: int
    on_demand_dollars_per_hour: float | None
    all_reduce_gb_per_second: float | None  # bus bandwidth; None: nobody has published one


INSTANCES = {
    "p4de.24xlarge": InstanceFacts(
        gpu="A100",
        gpus_per_node=8,
        gpu_memory_mib=81920,
        peak_bf16_tflops_per_gpu=312,
        vcpus=96,
        memory_gib=1152,
        allocatable_memory_mib=1082712,
        network_cards=4,
        interfaces_per_card=15,
        addresses_per_interface=50,
        efa_interfaces_per_node=4,
        efa_on_card_0=True,
        nvme_disks=8,
        nvme_gb=8000,
        on_demand_dollars_per_hour=27.447,
        all_reduce_gb_per_second=None,
    ),
    "p5.4xlarge": InstanceFacts(
        gpu="H100",
        gpus_per_node=1,
        gpu_memory_mib=81920,
        peak_bf16_tflops_per_gpu=989,
        vcpus=16,
        memory_gib=256,
        allocatable_memory_mib=240830,
        network_cards=1,
        interfaces_per_card=4,
        addresses_per_interface=30,
        efa_interfaces_per_node=1,
        efa_on_card_0=True,
        nvme_disks=1,
        nvme_gb=3800,
        on_demand_dollars_per_hour=6.88,
        all_reduce_gb_per_second=None,
    ),
    "p5.48xlarge": InstanceFacts(
        gpu="H100",
        gpus_per_node=8,
        gpu_memory_mib=81920,
        peak_bf16_tflops_per_gpu=989,
        vcpus=192,
        memory_gib=2048,
        allocatable_memory_mib=1938410,
        network_cards=32,
        interfaces_per_card=2,
        addresses_per_interface=50,
        efa_interfaces_per_node=32,
        efa_on_card_0=True,
        nvme_disks=8,
        nvme_gb=30400,
        on_demand_dollars_per_hour=55.04,
        all_reduce_gb_per_second=439.0,
    ),
    "p5e.48xlarge": InstanceFacts(
        gpu="H200",
        gpus_per_node=8,
        gpu_memory_mib=144384,
        peak_bf16_tflops_per_gpu=989,
        vcpus=192,
        memory_gib=2048,
        allocatable_memory_mib=1938410,
        network_cards=32,
        interfaces_per_card=2,
        addresses_per_interface=50,
        efa_interfaces_per_node=32,
        efa_on_card_0=True,
        nvme_disks=8,
        nvme_gb=30400,
        on_demand_dollars_per_hour=None,  # sold as capacity blocks, not listed on demand
        all_reduce_gb_per_second=None,
    ),
    "p5en.48xlarge": InstanceFacts(
        gpu="H200",
        gpus_per_node=8,
        gpu_memory_mib=144384,
        peak_bf16_tflops_per_gpu=989,
        vcpus=192,
        memory_gib=2048,
        allocatable_memory_mib=1937332,
        network_cards=16,
        interfaces_per_card=4,
        addresses_per_interface=50,
        efa_interfaces_per_node=16,
        efa_on_card_0=True,
        nvme_disks=8,
        nvme_gb=30400,
        on_demand_dollars_per_hour=63.296,
        all_reduce_gb_per_second=None,
    ),
    "p6-b200.48xlarge": InstanceFacts(
        gpu="B200",
        gpus_per_node=8,
        gpu_memory_mib=183359,
        peak_bf16_tflops_per_gpu=2250,
        vcpus=192,
        memory_gib=2048,
        allocatable_memory_mib=1937332,
        network_cards=8,
        interfaces_per_card=4,
        addresses_per_interface=50,
        efa_interfaces_per_node=8,
        efa_on_card_0=True,
        nvme_disks=8,
        nvme_gb=30400,
        on_demand_dollars_per_hour=113.9328,
        all_reduce_gb_per_second=523.8,
    ),
    "p6-b300.48xlarge": InstanceFacts(
        gpu="B300",
        gpus_per_node=8,
        gpu_memory_mib=275040,
        peak_bf16_tflops_per_gpu=2250,
        vcpus=192,
        memory_gib=4096,
        allocatable_memory_mib=3877198,
        # Card 0 takes ENA only: https://github.com/aws/aws-parallelcluster/issues/7143
        network_cards=17,
        interfaces_per_card=4,
        addresses_per_interface=50,
        efa_interfaces_per_node=16,
        efa_on_card_0=False,
        nvme_disks=8,
        nvme_gb=30400,
        on_demand_dollars_per_hour=142.416,
        all_reduce_gb_per_second=None,
    ),
}

# Types that people will ask for, and why they get a sentence instead of a node group.
REFUSED_INSTANCES = {
    "p6e-gb200.36xlarge": "no public source states how many interfaces each of its network cards takes, "
    "and a wrong count fails the launch",
}
