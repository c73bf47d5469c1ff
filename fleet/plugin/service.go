package plugin

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/internal/table"
)

// scanEvery is how often the directory is read. A change takes effect within 2 s.
const scanEvery = 500 * time.Millisecond

// A Stored is a plug-in of the database.
type Stored struct {
	Name      string
	Manifest  Manifest // without the values of Env
	Env       []byte   // sealed JSON of Env; nil if it is empty
	Version   int64
	UpdatedBy string
	UpdatedAt time.Time
}

// Store stores the plug-ins that were made through the console or REST. It audits each change.
type Store interface {
	Plugins(ctx context.Context) ([]Stored, error) // by name
	// CreatePlugin stores a plug-in, or fails with [fleet.ErrConflict] if its name is taken.
	CreatePlugin(ctx context.Context, by fleet.Principal, p Stored) error
	// UpdatePlugin replaces the plug-in whose version is one less. It fails with
	// [fleet.ErrNotFound], or with [fleet.ErrConflict] if the version in the database is another.
	UpdatePlugin(ctx context.Context, by fleet.Principal, p Stored) error
	DeletePlugin(ctx context.Context, by fleet.Principal, name string) error
	// RestartPlugin changes nothing, and audits that a plug-in was started again.
	RestartPlugin(ctx context.Context, by fleet.Principal, name string) error
}

// A Sealer encrypts the variables of programs in the database.
type Sealer interface {
	Seal(name string, key []byte) []byte
	Open(name string, sealed []byte) ([]byte, error)
}

// A Runner runs plug-ins.
type Runner interface {
	// Apply makes the runner run these plug-ins and no others. It returns at once.
	Apply([]Plugin)
	// Status returns what a plug-in does; false if the runner does not know it.
	Status(name string) (Status, bool)
	// Lines returns the latest lines of a plug-in's log, oldest first.
	Lines(name string) []Line
	// Restart starts a plug-in again at once.
	Restart(name string)
}

// Options configures [Service]. All fields but Directory, Events and Log are required.
type Options struct {
	Directory string // "" for none
	Store     Store
	Sealer    Sealer
	Runner    Runner
	Events    *fleet.Events
	Log       *slog.Logger
}

// Service manages the definitions of plug-ins. All its methods require an administrator of the
// whole fleet: a plug-in runs with the rights of its user on fleetd's machine.
type Service struct {
	o      Options
	stored *table.Table[[]Stored]

	mu        sync.Mutex
	directory directory
	files     []Plugin                // of the directory
	all       []Plugin                // those and the stored ones, by name
	logged    map[string]fleet.Reason // problem by name
}

// New returns the service. Call Load before using it.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{o: o, directory: directory{path: o.Directory}}
	s.stored = table.New(table.Options[[]Stored]{Read: func(ctx context.Context, _ *[]Stored) (*[]Stored, error) {
		list, err := o.Store.Plugins(ctx)
		return &list, err
	}, Changed: s.apply, What: "plug-ins", Log: o.Log})
	return s
}

// Load reads the directory and the database, and starts the plug-ins.
func (s *Service) Load(ctx context.Context) error {
	s.scan()
	return s.stored.Load(ctx)
}

// Run follows the directory and the database until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.stored.Run(ctx) }()
	for s.o.Directory != "" && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(scanEvery):
			if s.scan() {
				s.apply()
			}
		}
	}
	return <-done
}

// scan reads the directory and reports whether it changed.
func (s *Service) scan() bool {
	if s.o.Directory == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	files, changed := s.directory.scan()
	if !changed {
		return false
	}
	s.files = files
	if err := s.directory.err; err != nil {
		s.o.Log.Error("could not read the plug-in directory; its plug-ins go on", "err", err)
	}
	if n := s.directory.dropped; n > 0 {
		s.o.Log.Error("the plug-in directory has too many manifests", "limit", maxPlugins, "ignored", n)
	}
	return true
}

// ofDatabase ends the listed name of a stored plug-in with the same name as a file.
const ofDatabase = " (database)"

// apply passes the present definitions to the runner. A plug-in of the database that is wrong is
// passed as disabled: nothing is known that it may run instead.
func (s *Service) apply() {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.files)
	files := map[string]string{} // file by name
	for _, p := range all {
		files[p.Name] = p.File
	}
	for _, stored := range *s.stored.State() {
		p := s.plugin(stored)
		if file := files[p.Name]; file != "" {
			p.Problem = fleet.Because("plugin_duplicate", "file", filepath.Base(file))
			p.Name += ofDatabase
		}
		all = append(all, p)
	}
	s.all = sorted(all)
	s.logProblems()
	wanted := slices.Clone(s.all)
	for i, p := range wanted {
		if p.File == "" && !p.Problem.Is("") {
			wanted[i].Manifest.Disabled = true
		}
	}
	s.o.Runner.Apply(wanted)
}

// logProblems logs each problem once.
func (s *Service) logProblems() {
	problems := map[string]fleet.Reason{}
	for _, p := range s.all {
		if p.Problem.Is("") {
			continue
		}
		problems[p.Name] = p.Problem
		if !s.logged[p.Name].Equal(p.Problem) {
			s.o.Log.Warn("a plug-in cannot run", "plugin", p.Name, "file", p.File, "problem", p.Problem.String())
		}
	}
	s.logged = problems
}

// plugin returns a plug-in of the database with its variables.
func (s *Service) plugin(stored Stored) Plugin {
	p := Plugin{Name: stored.Name, Manifest: stored.Manifest, Directory: s.o.Directory, Version: stored.Version,
		UpdatedBy: stored.UpdatedBy, UpdatedAt: stored.UpdatedAt}
	env, err := s.open(stored)
	if err == nil {
		p.Manifest.Env = env
		err = s.confine(p.Manifest)
	}
	if err != nil {
		p.Problem = problemOf(err)
	}
	return p
}

func (s *Service) open(stored Stored) (map[string]string, error) {
	if stored.Env == nil {
		return nil, nil
	}
	data, err := s.o.Sealer.Open(sealName(stored.Name), stored.Env)
	if err != nil {
		return nil, fleet.Refuse(fleet.ErrInvalid, "plugin_field.sealed", "field", "env")
	}
	return decodeEnv(data)
}

func sealName(name string) string { return "plugin " + name }

// confine refuses a manifest of the database that names what only the directory's owner may
// choose: a program or file outside of the directory, a user, or variables that make a program
// load other code.
func (s *Service) confine(m Manifest) error {
	if m.User != "" {
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.file_only", "field", "user"))
	}
	if m.Directory != "" {
		return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.file_only", "field", "directory"))
	}
	paths := map[string][]string{"command": m.Command[:min(1, len(m.Command))], "env_files": m.EnvFiles}
	if m.HeadersFile != "" {
		paths["headers_file"] = []string{m.HeadersFile}
	}
	for _, field := range slices.Sorted(maps.Keys(paths)) {
		for _, path := range paths[field] {
			if !s.inside(path) {
				return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.outside", "field", field))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Env)) {
		if loads(name) {
			return inField(fleet.Refuse(fleet.ErrInvalid, "plugin_field.loads", "field", "env", "value", name))
		}
	}
	return nil
}

// Variables that make programs, interpreters or libraries load other code.
var (
	loaders = []string{"PATH", "HOME", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PS4", "IFS", "GCONV_PATH",
		"GLIBC_TUNABLES", "CLASSPATH", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "PHPRC", "PHP_INI_SCAN_DIR",
		"OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "GODEBUG", "LOCPATH", "NLSPATH", "ZDOTDIR"}
	loaderPrefixes = []string{"LD_", "DYLD_", "PYTHON", "NODE_", "NPM_", "PERL", "RUBY", "GEM_", "BUNDLE_", "LUA_", "GIT_",
		"DOTNET_", "CORECLR_", "ERL_", "XDG_", "BUN_", "DENO_", "TSX_", "TS_NODE_"}
)

func loads(variable string) bool {
	name := strings.ToUpper(variable)
	return slices.Contains(loaders, name) || slices.ContainsFunc(loaderPrefixes, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// inside reports whether the path, after all links, is a file in the directory.
func (s *Service) inside(path string) bool {
	if s.o.Directory == "" || !strings.Contains(path, "/") {
		return false
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.o.Directory, path)
	}
	root, err := filepath.EvalSymlinks(s.o.Directory)
	if err != nil {
		return false
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return false
	}
	info, err := os.Stat(path)
	rel, outside := filepath.Rel(root, path)
	return err == nil && info.Mode().IsRegular() && outside == nil && filepath.IsLocal(rel)
}

// A Listed is a plug-in with what it does.
type Listed struct {
	Plugin
	Status
}

// List returns all plug-ins by name. Values of variables are left out.
func (s *Service) List(by fleet.Principal) ([]Listed, error) {
	if err := by.May(fleet.RoleAdmin, "plugins"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	list := make([]Listed, len(all))
	for i, p := range all {
		list[i] = s.listed(p)
	}
	return list, nil
}

func (s *Service) listed(p Plugin) Listed {
	p.Manifest.Env = maps.Clone(p.Manifest.Env)
	for name := range p.Manifest.Env {
		p.Manifest.Env[name] = ""
	}
	l := Listed{Plugin: p}
	status, known := s.o.Runner.Status(p.Name)
	switch {
	case known:
		l.Status = status
	case !p.Problem.Is(""):
		l.Status.State = Invalid
	default:
		l.Status.State = Starting
	}
	return l
}

// Plugin returns one plug-in.
func (s *Service) Plugin(by fleet.Principal, name string) (Listed, error) {
	all, err := s.List(by)
	if err != nil {
		return Listed{}, err
	}
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}
	return Listed{}, unknown(name)
}

func unknown(name string) error {
	return fleet.Refuse(fleet.ErrNotFound, "unknown_plugin", "plugin", name)
}

// Lines returns the latest lines of a plug-in's log, oldest first.
func (s *Service) Lines(by fleet.Principal, name string) ([]Line, error) {
	if _, err := s.Plugin(by, name); err != nil {
		return nil, err
	}
	return s.o.Runner.Lines(name), nil
}

// Restart reads the definitions and starts a plug-in again. Calls in flight may finish first.
func (s *Service) Restart(ctx context.Context, by fleet.Principal, name string) (Listed, error) {
	if _, err := s.Plugin(by, name); err != nil {
		return Listed{}, err
	}
	if err := s.o.Store.RestartPlugin(ctx, by, name); err != nil {
		return Listed{}, err
	}
	s.scan()
	s.apply()
	s.o.Log.Info("plug-in restarted", "plugin", name, "by", by.Name)
	s.o.Runner.Restart(name)
	return s.Plugin(by, name)
}

// Create adds a plug-in to the database.
func (s *Service) Create(ctx context.Context, by fleet.Principal, name string, m Manifest) (Listed, error) {
	if err := by.May(fleet.RoleAdmin, "plugins"); err != nil {
		return Listed{}, err
	}
	if !namePattern.MatchString(name) {
		return Listed{}, fleet.Refuse(fleet.ErrInvalid, "plugin_name", "value", name).At("name")
	}
	taken, err := s.Plugin(by, name)
	if err == nil {
		return Listed{}, s.taken(taken.Plugin)
	}
	if err := s.check(&m); err != nil {
		return Listed{}, err
	}
	return s.change(ctx, by, name, func(list *[]Stored) error {
		if len(*list) >= maxPlugins {
			return fleet.Refuse(fleet.ErrConflict, "too_many_plugins", "limit", maxPlugins)
		}
		err := s.o.Store.CreatePlugin(ctx, by, s.seal(by, name, m, 1))
		if errors.Is(err, fleet.ErrConflict) {
			return s.taken(Plugin{Name: name})
		}
		return err
	})
}

func (s *Service) check(m *Manifest) error {
	if err := m.Check(); err != nil {
		return err
	}
	return s.confine(*m)
}

func (s *Service) taken(p Plugin) error {
	return fleet.Refuse(fleet.ErrConflict, "plugin_exists", "plugin", p.Name).At("name")
}

func (s *Service) seal(by fleet.Principal, name string, m Manifest, version int64) Stored {
	stored := Stored{Name: name, Version: version, UpdatedBy: by.Name,
		UpdatedAt: time.Now().UTC().Truncate(time.Microsecond)}
	if len(m.Env) > 0 {
		stored.Env = s.o.Sealer.Seal(sealName(name), encodeEnv(m.Env))
	}
	m.Env = nil
	stored.Manifest = m
	return stored
}

// Update changes a plug-in of the database. change gets the present manifest, with the values of
// its variables. version is the version that the editor saw; 0 changes whatever is current.
func (s *Service) Update(ctx context.Context, by fleet.Principal, name string, version int64,
	change func(*Manifest) error) (Listed, error) {
	listed := name
	name, err := s.changeable(by, listed)
	if err != nil {
		return Listed{}, err
	}
	return s.change(ctx, by, listed, func(list *[]Stored) error {
		i := slices.IndexFunc(*list, func(p Stored) bool { return p.Name == name })
		if i < 0 {
			return unknown(name)
		}
		now := (*list)[i]
		if version != 0 && version != now.Version {
			return fleet.Refuse(fleet.ErrConflict, "plugin_changed", "plugin", name, "version", now.Version).At("version")
		}
		m := now.Manifest
		env, err := s.open(now)
		sealed := err != nil // with another key: they stay until they are set again
		m.Env = env
		if err := change(&m); err != nil {
			return err
		}
		if err := s.check(&m); err != nil {
			return err
		}
		next := s.seal(by, name, m, now.Version+1)
		if sealed && len(m.Env) == 0 && m.URL == "" {
			next.Env = now.Env
		}
		return s.o.Store.UpdatePlugin(ctx, by, next)
	})
}

// Delete removes a plug-in from the database.
func (s *Service) Delete(ctx context.Context, by fleet.Principal, name string) error {
	name, err := s.changeable(by, name)
	if err != nil {
		return err
	}
	return s.stored.Change(ctx, 0, func(*[]Stored) error { return s.o.Store.DeletePlugin(ctx, by, name) })
}

// changeable refuses to change a plug-in of the directory. It returns the name in the database.
func (s *Service) changeable(by fleet.Principal, name string) (string, error) {
	p, err := s.Plugin(by, name)
	if err == nil && p.File != "" {
		err = fleet.Refuse(fleet.ErrConflict, "plugin_of_file", "plugin", name, "file", filepath.Base(p.File))
	}
	return strings.TrimSuffix(name, ofDatabase), err
}

func (s *Service) change(ctx context.Context, by fleet.Principal, name string, do func(*[]Stored) error) (Listed,
	error) {
	if err := s.stored.Change(ctx, 0, do); err != nil {
		return Listed{}, err
	}
	return s.Plugin(by, name)
}

// Defines reports whether a plug-in with this device is defined, also if it cannot run now.
func (s *Service) Defines(id fleet.DeviceID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.all, func(p Plugin) bool { return p.Device() == id })
}

// OfferedToVoice returns the devices of the plug-ins whose tools the voice servers' models get,
// also of those that are not running, in order of their names.
func (s *Service) OfferedToVoice() (ids []fleet.DeviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.all {
		if m := p.Manifest; m.OfferToVoice && m.Audience != fleet.AudienceUser && !m.Disabled {
			ids = append(ids, p.Device())
		}
	}
	return ids
}
