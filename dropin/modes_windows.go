package main

// modes are the modes of this system.
var modes = []mode{kernelspace()}
