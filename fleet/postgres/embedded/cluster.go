package embedded

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// settings is appended to a new cluster's postgresql.conf. From then on the
// file belongs to the operator.
//
//go:embed settings.conf
var settings string

// ensureCluster makes the cluster unless it exists. The caller holds the lock
// of the data directory.
func (d dataDir) ensureCluster(ctx context.Context, bin binaries, who owner, log *slog.Logger) error {
	major, err := d.major() // again: another fleetd may have made it meanwhile
	if err != nil || major != 0 {
		return err
	}
	log.Info("making a PostgreSQL cluster", "directory", d.cluster(), "version", bin.major, "user", who.name)
	return d.createCluster(ctx, bin, who, log)
}

// createCluster makes the cluster in a sibling directory and renames it when it
// is complete, so that an incomplete one is never used as a cluster.
func (d dataDir) createCluster(ctx context.Context, bin binaries, who owner, log *slog.Logger) error {
	if err := d.clearUnborn(ctx, log); err != nil {
		return err
	}
	if err := os.Mkdir(d.unborn(), 0o700); err != nil {
		return d.unwritable(err)
	}
	defer os.RemoveAll(d.unborn()) // nothing is there after the move
	if err := os.Chown(d.unborn(), who.uid, who.gid); err != nil {
		return fmt.Errorf("cannot give %s to user %s: %w", d.unborn(), who.name, err)
	}
	if err := initdb(ctx, bin, who, d.unborn(), log); err != nil {
		return err
	}
	if err := appendSettings(d.unborn()); err != nil {
		return d.unwritable(err)
	}
	if err := os.Rename(d.unborn(), d.cluster()); err != nil {
		return d.unwritable(err)
	}
	return syncDir(string(d))
}

// clearUnborn removes what a start that was killed has left, once its initdb
// is gone.
func (d dataDir) clearUnborn(ctx context.Context, log *slog.Logger) error {
	mount, err := lockDir(ctx, d.unborn(), log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer mount.Close()
	if err := os.RemoveAll(d.unborn()); err != nil {
		return d.unwritable(err)
	}
	return nil
}

// initdb fills dir with a new cluster.
func initdb(ctx context.Context, bin binaries, who owner, dir string, log *slog.Logger) error {
	mount, err := lockDir(ctx, dir, log)
	if err != nil {
		return err
	}
	defer mount.Close()
	args := []string{"-D", mountPath, "-U", superuser, "--encoding=UTF8", "--data-checksums",
		"--auth-local=trust", "--auth-host=reject", "--lc-messages=C"}
	cmd := exec.CommandContext(ctx, bin.path("initdb"), append(args, localeArgs(bin.major)...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	confine(cmd, bin, who, mount, syscall.SIGTERM)
	exited := make(chan error, 1)
	if err := startBound(cmd, func(err error) { exited <- err }); err != nil {
		return fmt.Errorf("cannot run %s as user %s: %w", cmd.Path, who.name, err)
	}
	if err := <-exited; err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("cannot make a PostgreSQL cluster in %s: %s (%w)", dir, complaint(out.Bytes()), err)
	}
	return nil
}

// localeArgs orders text by code point, which no update of the system's
// locales can change under an index, and knows upper and lower case in all
// scripts. PostgreSQL 17 brings such a locale itself.
func localeArgs(major int) []string {
	if major >= 17 {
		return []string{"--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C.UTF-8"}
	}
	return []string{"--locale=C", "--lc-ctype=C.UTF-8"}
}

// appendSettings works below an [os.Root]: the directory belongs to an
// unprivileged user already, whose symbolic links root must not follow.
func appendSettings(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile("postgresql.conf", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(settings); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
