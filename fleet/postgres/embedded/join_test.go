package embedded

import (
	"context"
	"path/filepath"
	"testing"
)

func TestJoin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if _, running, err := Join(dir); running || err != nil {
		t.Fatalf("Join before the first start = %v, %v", running, err)
	}
	h := startHelper(t, dir, "")
	h.ready(t)
	url, running, err := Join(dir)
	if !running || err != nil {
		t.Fatalf("Join = %v, %v", running, err)
	}
	query(t, url, "CREATE TABLE made AS SELECT 'by the command' AS v")
	h.input.Close()
	if err := h.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, running, err := Join(dir); running || err != nil {
		t.Fatalf("Join after the stop = %v, %v", running, err)
	}
}

// A command joins while the server is still being made.
func TestJoinWaits(t *testing.T) {
	dir := t.TempDir()
	h := startHelper(t, dir, "")
	for {
		url, running, err := Join(dir)
		if err != nil {
			t.Fatal(err)
		}
		if running {
			if got := query(t, url, "SELECT current_user"); got != database {
				t.Errorf("current_user = %q", got)
			}
			break
		}
	}
	h.ready(t)
}

func TestConnect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	opts := Options{DataDir: dir}
	url, release, err := Connect(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	query(t, url, "CREATE TABLE made AS SELECT 'alone' AS v")
	if err := release(context.Background()); err != nil {
		t.Fatal(err)
	}

	_, _ = startHelper(t, dir, "").ready(t)
	url, release, err = Connect(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if got := query(t, url, "SELECT v FROM made"); got != "alone" {
		t.Errorf("joined: %q", got)
	}
	if err := release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, running, _ := Join(dir); !running {
		t.Error("release stopped a server that was only joined")
	}
}
