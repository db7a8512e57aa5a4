"""What the root of every image has that is ours: its folders, and the files that name its users."""

from typing import Final

FOLDERS: Final = ("dev", "etc", "opt", "proc", "run", "sys", "tmp", "var", "workspace")
LINKS: Final = {"var/tmp": "/tmp"}  # noqa: S108 - inside
USERS: Final = {
    "passwd": "root:x:0:0::/:/usr/sbin/nologin\nguest:x:1000:1000::/workspace:/bin/sh\n",
    "group": "root:x:0:\nguest:x:1000:\n",
    "hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
