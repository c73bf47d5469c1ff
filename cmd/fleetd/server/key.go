package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/lease"
	"fleetd/fleet/postgres"
)

// openKeys loads the keys that sign device credentials.
func openKeys(ctx context.Context, store enrolment.KeyStore, secret []byte, log *slog.Logger) (*enrolment.SigningKeys,
	error) {
	keys, err := enrolment.NewSigningKeys(store, secret, log)
	if err != nil {
		return nil, err
	}
	err = keys.Load(ctx)
	if errors.Is(err, enrolment.ErrSealed) {
		return nil, fmt.Errorf("%w; if it is lost, create a new key with: fleetd key reset", err)
	}
	return keys, err
}

type KeyCommand struct {
	Status keyStatus `cmd:"" help:"Show the progress of the signing key's rotation."`
	Rotate keyRotate `cmd:"" help:"Start a rotation: a new key signs, and both keys are accepted."`
	Finish keyFinish `cmd:"" help:"Finish the rotation: the key that no longer signs is refused. Lists the remaining devices first."`
	Abort  keyAbort  `cmd:"" help:"Abort the rotation: the old key signs again; both keys are accepted until finish."`
	Reset  keyReset  `cmd:"" help:"After secret.key was lost: create a new key and refuse all others. Every device must be restarted."`
}

// keyFlags are shared by the commands that change keys.
type keyFlags struct {
	Database
	JSON    bool   `name:"json" help:"Print JSON."`
	Confirm string `help:"Confirmation text, instead of asking for it on a terminal." placeholder:"TEXT"`
}

// withKeys opens the server's database and keys for one command. A running
// server sees the changes within seconds. Only a reset accepts another secret
// key than the one that the database is used with.
func (f *Database) withKeys(ctx context.Context, reset bool, do func(*enrolment.SigningKeys) error) error {
	secret, err := readSecret(f.DataDir)
	if err != nil {
		return err
	}
	db, err := openDatabase(ctx, f, quietLogger())
	if err != nil {
		return err
	}
	defer db.close()
	if err := checkSecret(ctx, db.store, secret); err != nil {
		if !reset {
			return err
		}
		if err := checkUnused(ctx, db.store); err != nil {
			return err
		}
	}
	if err := secret.create(); err != nil {
		return err
	}
	var keys *enrolment.SigningKeys
	if reset {
		keys, err = enrolment.NewSigningKeys(db.store, secret.key, quietLogger())
	} else {
		keys, err = openKeys(ctx, db.store, secret.key, quietLogger())
	}
	if err != nil {
		return err
	}
	return do(keys)
}

// checkUnused refuses another secret key while a process serves the database: it has the present
// one, so that is not lost.
func checkUnused(ctx context.Context, store *postgres.Store) error {
	l, err := store.Lease(ctx)
	switch {
	case errors.Is(err, fleet.ErrNotFound), err == nil && (l.Released || l.Left <= 0):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%s serves this database with another secret key: copy that key, or stop it before the reset",
		l.Holder)
}

// checkSecret refuses a key that is not the one that the database is used with.
func checkSecret(ctx context.Context, store *postgres.Store, secret secretKey) error {
	fingerprint, used, err := store.SecretFingerprint(ctx)
	if err != nil {
		return err
	}
	if err := secret.check(fingerprint, used); err != nil {
		return &lease.UnfitError{Err: err}
	}
	return nil
}

// confirmed returns the value of --confirm, or asks for it.
func (f *keyFlags) confirmed(question string) (string, error) {
	if f.Confirm != "" {
		return f.Confirm, nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return "", UsageError{errors.New("this must be confirmed: give --confirm (see --help)")}
	}
	fmt.Fprint(os.Stderr, question)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(line), nil
}

// show prints the latest rotation.
func (f *keyFlags) show(ctx context.Context, keys *enrolment.SigningKeys) error {
	return showRotation(ctx, keys, f.JSON)
}

func showRotation(ctx context.Context, keys *enrolment.SigningKeys, asJSON bool) error {
	r := keys.Rotation()
	counts, err := keys.Counts(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		out := map[string]any{"signing_generation": keys.SigningGeneration(), "state": "none"}
		if r.ID != 0 {
			out = map[string]any{"signing_generation": keys.SigningGeneration(), "state": r.State,
				"from_generation": r.FromGeneration,
				"to_generation":   r.ToGeneration, "started_at": r.StartedAt, "started_by": r.StartedBy, "ended_at": r.EndedAt,
				"devices": map[string]int64{"new": counts.New, "old": counts.Old, "not_seen": counts.NotSeen},
				"left":    counts.Left(r)}
		}
		return terminal.JSON(out)
	}
	if r.ID == 0 {
		fmt.Println("the signing key has never been rotated")
		return nil
	}
	fmt.Printf("rotation of the signing key from generation %d to %d: %s, started %s by %s\n", r.FromGeneration,
		r.ToGeneration, r.State,
		r.StartedAt.Format(time.DateTime), terminal.Printable(r.StartedBy))
	fmt.Printf("generation %d signs\n\n", keys.SigningGeneration())
	return terminal.Table("CONNECTED-WITH-NEW SEEN-WITHOUT-IT NOT-SEEN LEFT", [][]string{{strconv.FormatInt(counts.New, 10),
		strconv.FormatInt(counts.Old, 10), strconv.FormatInt(counts.NotSeen, 10), strconv.FormatInt(counts.Left(r), 10)}})
}

type keyStatus struct {
	Database
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *keyStatus) Run(ctx context.Context) error {
	return c.withKeys(ctx, false, func(keys *enrolment.SigningKeys) error { return showRotation(ctx, keys, c.JSON) })
}

type keyRotate struct{ keyFlags }

func (c *keyRotate) Run(ctx context.Context) error {
	return c.withKeys(ctx, false, func(keys *enrolment.SigningKeys) error {
		typed, err := c.confirmed("Type rotate to start: ")
		if err == nil {
			_, err = keys.Start(ctx, localActor, typed)
		}
		if err != nil {
			return err
		}
		return c.show(ctx, keys)
	})
}

type keyFinish struct{ keyFlags }

func (c *keyFinish) Run(ctx context.Context) error {
	return c.withKeys(ctx, false, func(keys *enrolment.SigningKeys) error {
		if err := listLeft(ctx, keys); err != nil {
			return err
		}
		typed, err := c.confirmed("These devices are refused afterwards, until they are restarted. Type how many there are: ")
		if err == nil {
			_, err = keys.Finish(ctx, localActor, typed)
		}
		if err != nil {
			return err
		}
		return c.show(ctx, keys)
	})
}

// listLeft prints to stderr the devices that the end of the rotation will
// refuse. The result of the command goes to stdout.
func listLeft(ctx context.Context, keys *enrolment.SigningKeys) error {
	const shown = 1000
	r := keys.Rotation()
	counts, err := keys.Counts(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d devices are left\n", counts.Left(r))
	f := enrolment.RotationFilter{Groups: r.LeftGroups(), Limit: fleet.MaxLimit}
	for n := 0; n < shown; {
		page, err := keys.Devices(ctx, f)
		if err != nil {
			return err
		}
		for _, d := range page.Items {
			seen := "never"
			if d.LastSeen != nil {
				seen = d.LastSeen.Format(time.DateTime)
			}
			fmt.Fprintf(os.Stderr, "  %s  %s  last seen %s  %s\n", d.Device, d.Presence, seen, terminal.Printable(d.Name))
		}
		n += len(page.Items)
		if f.Cursor = page.Next; f.Cursor == "" {
			return nil
		}
	}
	fmt.Fprintln(os.Stderr, "  ... and more; the console lists them all")
	return nil
}

type keyAbort struct{ keyFlags }

func (c *keyAbort) Run(ctx context.Context) error {
	return c.withKeys(ctx, false, func(keys *enrolment.SigningKeys) error {
		typed, err := c.confirmed("Type abort to have the old key sign again: ")
		if err == nil {
			_, err = keys.Abort(ctx, localActor, typed)
		}
		if err != nil {
			return err
		}
		return c.show(ctx, keys)
	})
}

type keyReset struct{ keyFlags }

func (c *keyReset) Run(ctx context.Context) error {
	return c.withKeys(ctx, true, func(keys *enrolment.SigningKeys) error {
		typed, err := c.confirmed("Every device is refused until it is restarted. Type reset: ")
		if err == nil {
			_, err = keys.Reset(ctx, localActor, typed)
		}
		if err != nil {
			return err
		}
		return c.show(ctx, keys)
	})
}
