package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
)

// Reboot ends all processes of a node at once, as a reset does, and returns when containerd runs again. What the node
// has in /var is still there, its network and its rules are not, nor is a proxy that [Cluster.Proxy] has started. It
// was not tried where cgroups are of version 2.
func (c *Cluster) Reboot(ctx context.Context, node string) error {
	i, err := c.index(node)
	if err != nil {
		return err
	}
	if err := readJSON(c.Options.file(nodesFile), &c.nodes); err != nil { // it may have restarted since
		return fmt.Errorf("no nodes: %w", err)
	}
	before := c.nodes[i].PID
	if out, err := c.inside(ctx, nil, "kill", "-KILL", strconv.Itoa(before)).CombinedOutput(); err != nil {
		return fmt.Errorf("end node %s: %w: %s", node, err, out)
	}
	return poll(ctx, "node "+node+" starts again", func() (bool, error) {
		if err := readJSON(c.Options.file(nodesFile), &c.nodes); err != nil {
			return false, err
		}
		return c.nodes[i].PID != before, nil
	})
}

// Load gives an archive of images, such as [WriteArchive] makes, to the containerd of every node.
func (c *Cluster) Load(ctx context.Context, archive string) error {
	for i := range c.nodes {
		if err := importImages(c.inside(ctx, &c.nodes[i], importArgs(archive)...)); err != nil {
			return fmt.Errorf("node %s: %w", c.nodes[i].Name, err)
		}
	}
	return nil
}

// Root is the folder of the files that the images have, which the script build makes.
func (o Options) Root() string { return filepath.Join(filepath.Dir(o.Programs), "root") }
