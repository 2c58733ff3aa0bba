package docs_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// speedRow is a program at one size of the cluster.
type speedRow struct {
	mode, proxy string
	run         report.SpeedRun
}

// speedRows reads the judge's reports in folder speed.
func speedRows(t *testing.T) (rows []speedRow) {
	paths, err := filepath.Glob("speed/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		r, err := report.Read(text)
		require.NoError(t, err, path)
		require.NotNil(t, r.Speed, path)
		canBeRepeated(t, path, r.Implementation.Command)
		name := r.Implementation.Name
		if name == "kube-proxy-lib" {
			name = "ours"
		}
		for _, run := range r.Speed.Runs {
			require.Empty(t, run.Problem, path)
			rows = append(rows, speedRow{r.Implementation.Mode, name, run})
		}
	}
	slices.SortStableFunc(rows, func(a, b speedRow) int {
		return cmp.Or(-cmp.Compare(a.mode, b.mode), cmp.Compare(a.run.Services, b.run.Services),
			cmp.Compare(a.proxy, b.proxy))
	})
	return rows
}

// inTime returns milliseconds in a form for people.
func inTime(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

// speedTables returns the tables of the page.
func speedTables(rows []speedRow) string {
	var b strings.Builder
	b.WriteString("| services x endpoints, mode | proxy | start | one change at a time | 100 at once | ten a second " +
		"| 100 a second | 1,000 a second |\n|---|---|---|---|---|---|---|---|\n")
	pair := func(l report.Latency) string { return inTime(l.P50) + ", " + inTime(l.P99) }
	begin := func(r speedRow) {
		services := fmt.Sprint(r.run.Services)
		services = services[:len(services)-3] + "," + services[len(services)-3:]
		fmt.Fprintf(&b, "| %s x %d, %s | %s ", services, r.run.Endpoints, r.mode, r.proxy)
	}
	for _, r := range rows {
		begin(r)
		fmt.Fprintf(&b, "| %s | %s | %s ", inTime(r.run.Start), pair(r.run.Change), pair(r.run.Burst))
		for _, rate := range []int{10, 100, 1000} {
			if x := r.run.PerSecond(rate); x != nil {
				fmt.Fprintf(&b, "| %s ", pair(x.Latency))
			} else {
				b.WriteString("| - ")
			}
		}
		b.WriteString("|\n")
	}
	b.WriteString("\n| services x endpoints, mode | proxy | processor at 100 changes a second | listing of the rules: " +
		"quiet / beside 10 / 100 / 1,000 changes a second | longest gap | peak memory, with children |\n" +
		"|---|---|---|---|---|---|\n")
	for _, r := range rows {
		begin(r)
		cpu := "-"
		if x := r.run.PerSecond(100); x != nil {
			cpu = fmt.Sprintf("%.0f %% of a core", x.CPU/100)
		}
		listings := []string{listed(r.run.Listing)}
		for _, rate := range []int{10, 100, 1000} {
			if x := r.run.PerSecond(rate); x != nil {
				listings = append(listings, listed(x.Listing))
			} else {
				listings = append(listings, "-")
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d MiB |\n", cpu, strings.Join(listings, " / "), inTime(r.run.Gap),
			r.run.Memory>>20)
	}
	return b.String()
}

func listed(l *report.Listing) string {
	switch {
	case l == nil:
		return "-"
	case l.Unfinished:
		return "> " + inTime(l.Time)
	}
	return inTime(l.Time)
}

// TestTheTablesOfSpeed: the page says what the reports say. With FAKEMODEL_UPDATE=1 that is made anew.
func TestTheTablesOfSpeed(t *testing.T) {
	madeFromReports(t, "benchmarks.md", speedTables(speedRows(t)))
}
