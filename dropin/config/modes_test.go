package config_test

import (
	"runtime"
	"testing"
)

// needModesOfLinux skips tests of files with a mode that Windows does not have.
func needModesOfLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the file has a mode of Linux, which is refused here")
	}
}

// supportedModes is how errors name the modes of this operating system.
func supportedModes() string {
	if runtime.GOOS == "windows" {
		return `"kernelspace"`
	}
	return `"iptables", "ipvs", "nftables"`
}
