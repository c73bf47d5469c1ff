package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"fleetd/fleet"
)

// fakeStore keeps plug-ins in memory.
type fakeStore struct {
	mu   sync.Mutex
	list []Stored
	acts []string
}

func (s *fakeStore) Plugins(context.Context) ([]Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list), nil
}

func (s *fakeStore) CreatePlugin(_ context.Context, _ fleet.Principal, p Stored) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.acts = append(s.list, p), append(s.acts, "create "+p.Name)
	return nil
}

func (s *fakeStore) UpdatePlugin(_ context.Context, _ fleet.Principal, p Stored) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.list, func(o Stored) bool { return o.Name == p.Name })
	s.list[i], s.acts = p, append(s.acts, "update "+p.Name)
	return nil
}

func (s *fakeStore) DeletePlugin(_ context.Context, _ fleet.Principal, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(p Stored) bool { return p.Name == name })
	s.acts = append(s.acts, "delete "+name)
	return nil
}

func (s *fakeStore) RestartPlugin(_ context.Context, _ fleet.Principal, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acts = append(s.acts, "restart "+name)
	return nil
}

// fakeSealer seals with a key that a test changes.
type fakeSealer struct{ key byte }

func (s *fakeSealer) Seal(_ string, data []byte) []byte { return append([]byte{s.key}, data...) }

func (s *fakeSealer) Open(_ string, sealed []byte) ([]byte, error) {
	if sealed[0] != s.key {
		return nil, errors.New("another key")
	}
	return sealed[1:], nil
}

type fakeRunner struct {
	wanted    []Plugin
	restarted []string
}

func (r *fakeRunner) Apply(list []Plugin)          { r.wanted = list }
func (r *fakeRunner) Status(string) (Status, bool) { return Status{}, false }
func (r *fakeRunner) Lines(string) []Line          { return nil }
func (r *fakeRunner) Restart(name string)          { r.restarted = append(r.restarted, name) }

var admin = fleet.Principal{Kind: fleet.KindOperator, Name: "ann", Role: fleet.RoleAdmin}

// Only an administrator of the whole fleet sees or changes plug-ins.
func TestWhoMay(t *testing.T) {
	store, runner := &fakeStore{}, &fakeRunner{}
	s := New(Options{Directory: t.TempDir(), Store: store, Sealer: &fakeSealer{}, Runner: runner})
	m := Manifest{URL: "https://x.test/"}
	if _, err := s.Create(t.Context(), admin, "web", m); err != nil {
		t.Fatal(err)
	}
	store.acts = nil
	model, viewer, scoped := admin, admin, admin
	model.Kind, viewer.Role = fleet.KindModel, fleet.RoleOperator
	q, err := fleet.ParseQuery("tag:lab")
	if err != nil {
		t.Fatal(err)
	}
	scoped.Scope = &fleet.Scope{Filter: q}
	for what, by := range map[string]fleet.Principal{"a model": model, "an operator": viewer, "an admin of some devices": scoped} {
		tries := map[string]error{}
		_, tries["list"] = s.List(by)
		_, tries["plugin"] = s.Plugin(by, "web")
		_, tries["lines"] = s.Lines(by, "web")
		_, tries["restart"] = s.Restart(t.Context(), by, "web")
		_, tries["create"] = s.Create(t.Context(), by, "other", m)
		_, tries["update"] = s.Update(t.Context(), by, "web", 0, func(*Manifest) error { t.Error("changed"); return nil })
		tries["delete"] = s.Delete(t.Context(), by, "web")
		for act, err := range tries {
			if !errors.Is(err, fleet.ErrForbidden) {
				t.Errorf("%s: %s: %v", what, act, err)
			}
		}
	}
	if len(store.acts)+len(runner.restarted) != 0 {
		t.Errorf("refused acts did %v, %v", store.acts, runner.restarted)
	}
}

// A definition of the database that became wrong is not run, and loses no variables.
func TestWrongDefinitionIsNotRun(t *testing.T) {
	path := t.TempDir()
	program := filepath.Join(path, "weather")
	write(t, program, "x")
	store, sealer, runner := &fakeStore{}, &fakeSealer{}, &fakeRunner{}
	s := New(Options{Directory: path, Store: store, Sealer: sealer, Runner: runner})
	made, err := s.Create(t.Context(), admin, "weather",
		Manifest{Command: Words{"./weather"}, Env: map[string]string{"KEY": "hush"}})
	if err != nil || made.Manifest.Env["KEY"] != "" || runner.wanted[0].Manifest.Env["KEY"] != "hush" || runner.wanted[0].Manifest.Disabled {
		t.Fatalf("%+v, %v, %+v", made, err, runner.wanted)
	}
	load := func(wantProblem string) {
		t.Helper()
		if err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p := runner.wanted[0]; p.Problem.Code != wantProblem || p.Manifest.Disabled != (wantProblem != "") {
			t.Errorf("the runner gets %+v, want the problem %q", p, wantProblem)
		}
	}
	if err := os.Rename(program, program+"-2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", program); err != nil {
		t.Fatal(err)
	}
	load("plugin_field")
	if err := os.Rename(program+"-2", program); err != nil {
		t.Fatal(err)
	}
	load("")
	sealer.key = 1
	load("plugin_field")
	if _, err := s.Update(t.Context(), admin, "weather", 1, func(m *Manifest) error { m.Disabled = true; return nil }); err != nil {
		t.Fatal(err)
	}
	sealer.key = 0
	if err := s.Load(t.Context()); err != nil || runner.wanted[0].Manifest.Env["KEY"] != "hush" {
		t.Errorf("%v, %+v", err, runner.wanted)
	}
}

// The file counts if the database has the name, too; each stays changeable where it is defined.
func TestNameOfFileAndDatabase(t *testing.T) {
	path := t.TempDir()
	store, runner := &fakeStore{}, &fakeRunner{}
	s := New(Options{Directory: path, Store: store, Sealer: &fakeSealer{}, Runner: runner})
	if _, err := s.Create(t.Context(), admin, "a", Manifest{URL: "https://x.test/"}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(path, "a.yaml"), "command: x")
	if _, err := s.Restart(t.Context(), admin, "a"); err != nil {
		t.Fatal(err)
	}
	if got := described(runner.wanted); got != "a=x, a (database)=!plugin_duplicate" || !runner.wanted[1].Manifest.Disabled {
		t.Errorf("the runner gets %s", got)
	}
	if err := s.Delete(t.Context(), admin, "a"); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("removing the file's: %v", err)
	}
	if _, err := s.Create(t.Context(), admin, "a", Manifest{URL: "https://x.test/"}); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("creating it again: %v", err)
	}
	if err := s.Delete(t.Context(), admin, "a (database)"); err != nil || len(store.list) != 0 {
		t.Errorf("removing the database's: %v", err)
	}
	if want := []string{"create a", "restart a", "delete a"}; !slices.Equal(store.acts, want) {
		t.Errorf("audited %q, want %q", store.acts, want)
	}
}
