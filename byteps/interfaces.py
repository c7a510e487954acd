"""Which address of this machine a role listens on.

By default the one that the route to the scheduler uses, so that docker0 and the like are never picked; DMLC_NODE_HOST
or DMLC_INTERFACE (a name such as eth1, or a CIDR such as 10.1.0.0/16) choose another.
"""

import fcntl
import ipaddress
import socket
import struct

from byteps.errors import StartError
from byteps.handshake import resolve
from byteps.settings import Settings

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


def own_address(settings: Settings, towards_scheduler: str) -> str:
    """The numeric address to listen on; StartError names an interface that is not there, and those that are."""
    if settings.node_host:
        return resolve(settings.node_host, 0)[1][0]
    if not settings.interface:
        return towards_scheduler
    addresses = interface_addresses()
    if settings.interface in addresses:
        return addresses[settings.interface]
    try:
        network = ipaddress.ip_network(settings.interface, strict=False)
    except ValueError:
        network = None
    for address in addresses.values():
        if network is not None and ipaddress.ip_address(address) in network:
            return address
    listed = ", ".join(f"{name} ({address})" for name, address in addresses.items())
    raise StartError(
        f"DMLC_INTERFACE={settings.interface!r} is no interface or network here; this machine has {listed}"
    )
