package host

import (
	"bufio"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
	"fleetd/internal/program"
)

// A reasonError is an error with the reason that pages show.
type reasonError struct {
	reason fleet.Reason
	err    error
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

// detailOf returns the text of an error for a reason.
func detailOf(err error) string { return fleet.CleanText(err.Error(), 300) }

// notStarted returns the error of a plug-in that could not be started.
func notStarted(err error) error {
	return &reasonError{fleet.Because("plugin_start", "detail", detailOf(err)), err}
}

// pathOf returns the path of a file in a manifest.
func pathOf(p plugin.Plugin, path string) string {
	if filepath.IsAbs(path) || p.Directory == "" {
		return path
	}
	return filepath.Join(p.Directory, path)
}

// startProgram starts the program of a plug-in.
func (r *running) startProgram(p plugin.Plugin) (*program.Process, error) {
	m := p.Manifest
	env, err := environment(p)
	if err != nil {
		return nil, notStarted(err)
	}
	words := append(slices.Clone([]string(m.Command)), m.Args...)
	spec := program.Spec{Name: "plugin " + p.Name, Path: words[0], Args: words[1:], Dir: p.Directory,
		Limits: program.Limits{Memory: int64(m.Limits.Memory), CPU: m.Limits.CPU, OpenFiles: m.Limits.OpenFiles},
		Stderr: func(line string) { r.log.add(plugin.FromStderr, line) }}
	if strings.Contains(spec.Path, "/") {
		spec.Path = pathOf(p, spec.Path)
	}
	if m.Directory != "" {
		spec.Dir = pathOf(p, m.Directory)
	}
	if spec.Dir, err = filepath.Abs(cmp.Or(spec.Dir, "/")); err != nil {
		return nil, notStarted(err)
	}
	if strings.Contains(spec.Path, "/") {
		if spec.Path, err = filepath.Abs(spec.Path); err != nil {
			return nil, notStarted(err)
		}
	}
	if spec.User, err = r.host.users.of(r.host.o, p); err != nil {
		return nil, notStarted(err)
	}
	home := spec.Dir
	if dir := r.host.o.StateDir; dir != "" {
		if home, err = stateDir(dir, p.Name, spec.User); err != nil {
			return nil, notStarted(err)
		}
	}
	env["HOME"], env["TMPDIR"] = cmp.Or(env["HOME"], home), cmp.Or(env["TMPDIR"], home)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		spec.Env = append(spec.Env, name+"="+env[name])
	}
	process, err := program.Start(spec)
	if err != nil {
		return nil, notStarted(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uid = -1; spec.User != nil {
		r.uid = int(spec.User.UID)
	}
	return process, nil
}

// environment returns the variables of a program: none of fleetd's own.
func environment(p plugin.Plugin) (map[string]string, error) {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
	if zone := os.Getenv("TZ"); zone != "" {
		env["TZ"] = zone
	}
	for _, file := range p.Manifest.EnvFiles {
		if err := readEnv(pathOf(p, file), env); err != nil {
			return nil, fmt.Errorf("env_files: %s: %w", file, err)
		}
	}
	maps.Copy(env, p.Manifest.Env)
	return env, nil
}

// readEnv reads lines NAME=value. Blank lines and lines that begin with # are ignored.
func readEnv(path string, env map[string]string) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.New(cmp.Or(fleet.SystemCause(err), err.Error()))
	}
	defer f.Close()
	scan := bufio.NewScanner(io.LimitReader(f, 256<<10))
	for n := 1; scan.Scan(); n++ {
		line := strings.TrimSpace(scan.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if !ok {
			return fmt.Errorf("line %d is not NAME=value", n)
		}
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		env[strings.TrimSpace(name)] = value
	}
	return scan.Err()
}

// users are the uids of programs that have none in their manifest.
type users struct {
	mu  sync.Mutex
	uid map[string]int // by plug-in
}

const maxUsers = 4000

// of returns the user that a program runs as, nil for fleetd's.
func (u *users) of(o Options, p plugin.Plugin) (*program.User, error) {
	if name := p.Manifest.User; name != "" {
		return lookUser(name)
	}
	if !o.OwnUsers {
		return nil, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.uid == nil {
		u.uid = map[string]int{}
	}
	id, known := u.uid[p.Name]
	if !known {
		taken := map[int]bool{}
		for _, other := range u.uid {
			taken[other] = true
		}
		id = ownerOf(o.StateDir, p.Name) // as before, so that it can read its files
		for next := o.FirstUID; id < o.FirstUID || id >= o.FirstUID+maxUsers || taken[id]; next++ {
			if next >= o.FirstUID+maxUsers {
				return nil, errors.New("no uid is free")
			}
			id = next
		}
		u.uid[p.Name] = id
	}
	return &program.User{UID: uint32(id), GID: uint32(id)}, nil
}

// ownerOf returns the owner of a plug-in's state directory, -1 without a directory.
func ownerOf(stateDir, name string) int {
	info, err := os.Lstat(filepath.Join(stateDir, name))
	if stateDir == "" || err != nil {
		return -1
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return -1
	}
	return int(stat.Uid)
}

// stateDir makes the directory for a program's files.
func stateDir(root, name string, as *program.User) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if as != nil {
		if err := letThrough(filepath.Dir(root)); err != nil {
			return "", err
		}
		if err := os.Lchown(dir, int(as.UID), int(as.GID)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// letThrough lets other users reach what is in the directory if they know its name. What is in it
// has its own permissions.
func letThrough(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&0o001 != 0 {
		return err
	}
	return os.Chmod(dir, info.Mode().Perm()|0o001)
}

// lookUser finds a user by name or uid.
func lookUser(name string) (*program.User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			if uid, bad := strconv.ParseUint(name, 10, 31); bad == nil {
				return &program.User{UID: uint32(uid), GID: uint32(uid)}, nil
			}
			return nil, fmt.Errorf("there is no user %q", name)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &program.User{UID: uint32(uid), GID: uint32(gid)}, err
}

// filesOf returns the files whose change starts a plug-in again: its program, the arguments that
// are files, and those that the manifest reads.
func filesOf(p plugin.Plugin) []string {
	m := p.Manifest
	var files []string
	for i, word := range append(slices.Clone([]string(m.Command)), m.Args...) {
		if i == 0 && !strings.Contains(word, "/") {
			continue // of the system
		}
		files = append(files, pathOf(p, word))
	}
	for _, file := range m.EnvFiles {
		files = append(files, pathOf(p, file))
	}
	if m.HeadersFile != "" {
		files = append(files, pathOf(p, m.HeadersFile))
	}
	return files
}

// fingerprint returns a text that changes when one of the files does.
func fingerprint(p plugin.Plugin) string {
	var b strings.Builder
	for _, path := range filesOf(p) {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		inode := uint64(0)
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = stat.Ino
		}
		fmt.Fprintf(&b, "%s %d %d %d %v\n", path, info.Size(), info.ModTime().UnixNano(), inode, info.Mode())
	}
	return b.String()
}

// maxBuild bounds what is read to name a build.
const maxBuild = 256 << 20

// buildOf returns the SHA-256 of a program's files, as the build that it runs; "" without files.
func buildOf(p plugin.Plugin) string {
	sum, any := sha256.New(), false
	for i, word := range append(slices.Clone([]string(p.Manifest.Command)), p.Manifest.Args...) {
		if i == 0 && !strings.Contains(word, "/") {
			continue
		}
		f, err := os.Open(pathOf(p, word))
		if err != nil {
			continue
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			n, _ := io.Copy(sum, io.LimitReader(f, maxBuild))
			any = any || n > 0
		}
		f.Close()
	}
	if !any {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// definitionOf returns a fingerprint of what the manifest starts or connects to. The other settings,
// such as the tools that are offered, are no part of it.
func definitionOf(key []byte, p plugin.Plugin, headers http.Header) string {
	m := p.Manifest
	env := map[string]string{}
	for _, file := range m.EnvFiles {
		_ = readEnv(pathOf(p, file), env) // the program has started with it
	}
	maps.Copy(env, m.Env)
	mac := hmac.New(sha256.New, key)
	_ = json.NewEncoder(mac).Encode([]any{m.Command, m.Args, m.Directory, m.User, env, m.URL, headers})
	return hex.EncodeToString(mac.Sum(nil))
}
