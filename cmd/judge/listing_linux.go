package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// listing is the command that lists a program's rules.
type listing struct {
	mu      sync.Mutex
	command []string // nil until it is chosen
}

// List lists the rules, see [program.Host]. The first call chooses the command.
func (h *host) List(ctx context.Context) (command string, size int64, err error) {
	h.lister.mu.Lock()
	defer h.lister.mu.Unlock()
	if h.lister.command == nil {
		h.lister.command = chooseListing(ctx)
	}
	c := h.lister.command
	size, err = count(ctx, c)
	return strings.Join(c, " "), size, err
}

// chooseListing returns the command that prints most. A command that runs into the timeout has much to print.
func chooseListing(ctx context.Context) (command []string) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	command = listings()[0]
	var most int64
	for _, c := range listings() {
		size, err := count(ctx, c)
		if ctx.Err() != nil {
			return c
		}
		if err == nil && size > most {
			command, most = c, size
		}
	}
	return command
}

// listings returns the candidates. Both nft and iptables-nft-save list what iptables-nft wrote.
func listings() [][]string {
	return [][]string{{"nft", "list", "ruleset"}, {"iptables-nft-save"}, {"iptables-legacy-save"},
		{"ip6tables-legacy-save"},
		{"ipvsadm", "-S", "-n"}}
}

// count runs a command and returns the size of its output.
func count(ctx context.Context, command []string) (size int64, err error) {
	path, found := need.Find(command[0])
	if !found {
		return 0, fmt.Errorf("%s: %w", command[0], exec.ErrNotFound)
	}
	cmd := exec.CommandContext(ctx, path, command[1:]...)
	cmd.SysProcAttr = attributes()
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	size, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		return size, fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(failure.String()))
	}
	return size, nil
}
