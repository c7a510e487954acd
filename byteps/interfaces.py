"""Which addresses of this machine its summation processes listen on.

By default the one that the route to the scheduler uses, so that docker0 and the like are never picked; DMLC_NODE_HOST
or DMLC_INTERFACE (a name such as eth1, or a CIDR such as 10.1.0.0/16) choose another, or several, separated by commas.
A machine's processes then listen on them in turn.  They have equal shares, so every NIC carries as much as the others,
and workers reach each over the NIC of theirs that its network is on, as their kernel's routes say.
"""

import fcntl
import ipaddress
import socket
import struct
from typing import TYPE_CHECKING

from byteps.errors import StartError
from byteps.handshake import resolve

if TYPE_CHECKING:
    from byteps.settings import Settings  # brings numpy, and who asks for interfaces has no need of it

_SIOCGIFADDR = 0x8915


def interface_addresses() -> dict[str, str]:
    """IPv4 address by interface name, of those that have one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def own_address(settings: "Settings", towards_scheduler: str, process: int = 0) -> str:
    """The numeric address that this process listens on; StartError names an interface that is not there."""
    if not settings.nics:
        return towards_scheduler
    nic = settings.nics[process % len(settings.nics)]
    return resolve(nic, 0)[1][0] if settings.node_host else _address_of(nic)


def _address_of(interface: str) -> str:
    """By its name, or a network that it is on."""
    addresses = interface_addresses()
    if interface in addresses:
        return addresses[interface]
    try:
        network = ipaddress.ip_network(interface, strict=False)
    except ValueError:
        network = None
    for address in addresses.values():
        if network is not None and ipaddress.ip_address(address) in network:
            return address
    listed = ", ".join(f"{name} ({address})" for name, address in addresses.items())
    raise StartError(f"DMLC_INTERFACE={interface!r} is no interface or network here; this machine has {listed}")
