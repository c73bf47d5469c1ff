package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldestMajor is the oldest PostgreSQL that fleetd's SQL is written for.
const oldestMajor = 15

// versionedDirs is where Debian keeps each major version's server, which is
// not on the PATH.
var versionedDirs = "/usr/lib/postgresql/*/bin"

// binaries is one installed PostgreSQL.
type binaries struct {
	dir   string
	major int
}

func (b binaries) path(program string) string { return filepath.Join(b.dir, program) }

// findBinaries returns the server of version want, or the newest when want is
// 0. cluster is the directory that wants it, for the error's sake.
func findBinaries(ctx context.Context, binDir string, want int, cluster string) (binaries, error) {
	var found []int
	for _, dir := range candidates(ctx, binDir) {
		major, err := serverMajor(ctx, dir)
		if err != nil {
			continue
		}
		if major >= oldestMajor && (want == 0 || want == major) {
			return binaries{dir: dir, major: major}, nil
		}
		found = append(found, major)
	}
	return binaries{}, errNoBinaries(binDir, want, cluster, found)
}

// candidates lists directories that may hold a server, best first.
func candidates(ctx context.Context, binDir string) []string {
	if binDir != "" {
		return []string{binDir}
	}
	dirs, _ := filepath.Glob(versionedDirs)
	slices.SortFunc(dirs, func(a, b string) int { return dirMajor(b) - dirMajor(a) })
	if p, err := exec.LookPath("postgres"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, string(bytes.TrimSpace(out)))
	}
	return dirs
}

// dirMajor reads NN from /usr/lib/postgresql/NN/bin.
func dirMajor(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return n
}

var versionRE = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// serverMajor queries the version of the server in dir; initdb must be there as well.
func serverMajor(ctx context.Context, dir string) (int, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "-V").Output()
	if err != nil {
		return 0, err
	}
	m := versionRE.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s/postgres -V says %q", dir, out)
	}
	return strconv.Atoi(string(m[1]))
}

func errNoBinaries(binDir string, want int, cluster string, found []int) error {
	here := "none"
	if len(found) > 0 {
		here = joinMajors(found)
	}
	switch {
	case want >= oldestMajor:
		return fmt.Errorf("%s was made by PostgreSQL %d, and this machine has PostgreSQL %s: install that version (apt-get install postgresql-%d), or move the directory away to begin with an empty database",
			cluster, want, here, want)
	case want > 0:
		return fmt.Errorf("%s was made by PostgreSQL %d, and fleetd needs %d or newer: bring it to a newer version with pg_upgrade, or move it away to begin with an empty database",
			cluster, want, oldestMajor)
	case binDir != "":
		return fmt.Errorf("no PostgreSQL %d or newer in %s: name the directory that holds postgres and initdb", oldestMajor,
			binDir)
	case len(found) > 0:
		return fmt.Errorf("this machine has PostgreSQL %s, and fleetd needs %d or newer: install one (apt-get install postgresql-%d), or name a server with --database-url",
			here, oldestMajor, oldestMajor)
	}
	return errors.New("no PostgreSQL server on this machine: install one (apt-get install postgresql-15), or name a server with --database-url")
}

func joinMajors(majors []int) string {
	slices.Sort(majors)
	var s []string
	for _, m := range slices.Compact(majors) {
		s = append(s, strconv.Itoa(m))
	}
	return strings.Join(s, ", ")
}
