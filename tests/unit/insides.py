"""Machines to try things on: a builder for regular ones, and a hypothesis strategy for odd ones."""

from hypothesis import strategies as st

from byteps.machine import Link, Node, Topology

GBIT = 1e9 / 8


def machine(
    switches,
    nics=(),
    *,
    fabrics=(),
    gpu=105.0,
    switch=105.0,
    socket=300.0,
    nic=90.0,
    memory=1024.0,
    efficiency=1.0,
):
    """`switches`: by CPU, the numbers of GPUs of its switches; 0 is a GPU right under the CPU.  `nics`: what each is
    under.  `fabrics`: groups of GPU numbers.  Rates in Gbit/s, 0 is unknown."""
    cpus = [f"CPU{i}" for i in range(len(switches))]
    nodes = [Node(name=cpu, kind="cpu", bytes_per_s=memory * GBIT) for cpu in cpus]
    links = [Link(a=a, b=b, kind="socket", bytes_per_s=socket * GBIT) for a in cpus for b in cpus if a < b]
    gpus = 0
    for cpu, sizes in zip(cpus, switches, strict=True):
        for size in sizes:
            parent = cpu
            if size:
                parent = f"P{sum(node.kind == 'switch' for node in nodes)}"
                nodes.append(Node(name=parent, kind="switch"))
                links.append(Link(a=parent, b=cpu, kind="pcie", bytes_per_s=switch * GBIT))
            for _ in range(size or 1):
                nodes.append(Node(name=f"GPU{gpus}", kind="gpu"))
                links.append(Link(a=f"GPU{gpus}", b=parent, kind="pcie", bytes_per_s=gpu * GBIT))
                gpus += 1
    for number, parent in enumerate(nics):
        nodes.append(Node(name=f"NIC{number}", kind="nic", bytes_per_s=nic * GBIT))
        links.append(Link(a=f"NIC{number}", b=parent, kind="pcie", bytes_per_s=gpu * GBIT))
    for number, members in enumerate(fabrics):
        nodes.append(Node(name=f"NVLink{number}", kind="fabric"))
        links += [
            Link(a=f"GPU{i}", b=f"NVLink{number}", kind="nvlink", bytes_per_s=1200 * GBIT) for i in members if i < gpus
        ]
    return Topology(name="test", nodes=tuple(nodes), links=tuple(links), source="test", peer_efficiency=efficiency)


@st.composite
def machines(draw, *, least_gpus=1, least_nics=0, efficiencies=(1.0, 0.75)):
    """1 to 3 CPUs with switches and GPUs in any number, NICs anywhere, NVLink between all, some or no GPUs."""
    switches = draw(
        st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=3).filter(
            lambda cpus: least_gpus <= sum(size or 1 for sizes in cpus for size in sizes) <= 10
        )
    )
    count = sum(size or 1 for sizes in switches for size in sizes)
    parents = [f"CPU{i}" for i in range(len(switches))]
    parents += [f"P{i}" for i in range(sum(size > 0 for sizes in switches for size in sizes))]
    cut = draw(st.integers(0, count))
    rates = st.sampled_from([25.0, 90.0, 105.0, 400.0])
    return machine(
        switches,
        draw(st.lists(st.sampled_from(parents), min_size=least_nics, max_size=3)),
        fabrics=draw(st.sampled_from([(), (range(count),), (range(cut), range(cut, count)), (range(cut),)])),
        gpu=draw(rates),
        switch=draw(rates),
        socket=draw(rates),
        nic=draw(rates),
        memory=draw(st.sampled_from([0.0, 300.0, 1024.0])),
        efficiency=draw(st.sampled_from(efficiencies)),
    )
