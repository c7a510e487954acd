"""The version that every role of a job must share."""

VERSION = "0.1.0"
