"""Data sources: one file each, every one gives `Examples`."""

from propfair.data.base import SOURCES, ArrayExamples, Augment, Examples, Protocol, Remote, Source
from propfair.data.cifar import Cifar10, Cifar100
from propfair.data.digits import Digits
from propfair.data.fashion_mnist import FashionMnist
from propfair.data.form_fields import FormFields
from propfair.data.images import CropFlip, ImageSource
from propfair.data.lazy import LazyExamples
from propfair.data.offices import Offices
from propfair.data.own import Own
from propfair.data.shakespeare import Shakespeare
from propfair.data.synthetic import Synthetic
from propfair.data.tiny_imagenet import TinyImageNet

__all__ = [
    "SOURCES",
    "ArrayExamples",
    "Augment",
    "Cifar10",
    "Cifar100",
    "CropFlip",
    "Digits",
    "Examples",
    "FashionMnist",
    "FormFields",
    "ImageSource",
    "LazyExamples",
    "Offices",
    "Own",
    "Protocol",
    "Remote",
    "Shakespeare",
    "Source",
    "Synthetic",
    "TinyImageNet",
]
