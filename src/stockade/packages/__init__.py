"""Packages for a program: installed with a network in one sandbox, used without one in others."""

from stockade.packages.environment import WithPackages
from stockade.packages.installing import Installer, InstallFailed
from stockade.packages.recipe import Indexes, Recipe
from stockade.packages.store import PackageSet, PackageStore

__all__ = [
    "Indexes",
    "InstallFailed",
    "Installer",
    "PackageSet",
    "PackageStore",
    "Recipe",
    "WithPackages",
]
