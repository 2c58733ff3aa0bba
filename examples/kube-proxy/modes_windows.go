package main

// modes are those that there are.
var modes = []mode{kernelspace()}
