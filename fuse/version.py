"""The version of fuse, as files and reports name it; the package metadata has the same."""

VERSION = "0.1.0"
