package benchmarks

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// title says what was measured, when, and on what machine.
func title(version string) string {
	return fmt.Sprintf("kube-proxy %s / kube-proxy-lib (ratio), %s, %s", version, time.Now().Format(time.DateOnly), machine())
}

// machine describes this machine and what it does at the moment.
func machine() string {
	return fmt.Sprintf("%d x %s, Linux %s, nft %s, iptables %s, load average %s at the beginning", runtime.NumCPU(),
		processor(), firstWord("/proc/sys/kernel/osrelease"), programVersion("nft"), programVersion("iptables"),
		firstWord("/proc/loadavg"))
}

// processor is the name of the first one's model.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "?"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, model, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return runtime.GOARCH // not every architecture has names
}

func firstWord(file string) string {
	b, err := os.ReadFile(file)
	if fields := strings.Fields(string(b)); err == nil && len(fields) > 0 {
		return fields[0]
	}
	return "?"
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

func programVersion(program string) string {
	path, found := need.Find(program)
	if !found {
		return "missing"
	}
	out, _ := exec.Command(path, "--version").Output()
	if v := versionNumber.Find(out); v != nil {
		return string(v)
	}
	return "missing"
}
