package rollout

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

const (
	saveBatch    = 1000
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// save stores all changes of the turn, and then acts on them. While the store is away, save
// waits: the engine must not act on anything that is not stored.
func (l *loop) save(ctx context.Context) {
	l.markLazies()
	for len(l.dirty) > 0 && ctx.Err() == nil {
		n := min(len(l.dirty), saveBatch)
		batch := slices.Clone(l.dirty[:n])
		l.dirty = l.dirty[n:]
		l.saveBatch(ctx, batch)
		l.act(ctx, batch)
	}
	l.quarantineFailed(ctx)
}

func (l *loop) saveBatch(ctx context.Context, batch []*deployment) {
	changes := make([]campaign.DeploymentChange, len(batch))
	for i, d := range batch {
		changes[i] = campaign.DeploymentChange{Deployment: d.Deployment, Events: d.events}
	}
	l.register(ctx, batch)
	var stale []uuid.UUID
	err := l.persist(ctx, "deployments", func(ctx context.Context) (err error) {
		stale, err = l.o.Store.SaveDeployments(ctx, changes)
		return err
	})
	switch {
	case ctx.Err() != nil:
	case err == nil:
		l.saved(ctx, batch, stale)
	case len(batch) > 1:
		for i := range batch { // find the refused one
			l.saveBatch(ctx, batch[i:i+1])
		}
	default:
		l.o.Log.Error("what was observed of a deployment cannot be stored, and is dropped", "deployment", batch[0].ID,
			"device", batch[0].Device, "err", err)
		batch[0].seen = nil
		l.reread(ctx, batch[0])
	}
}

// register waits until the reports of the batch's devices are stored, before their consequences
// are. If the process dies between the two, the deployment still waits. No deployment succeeds
// with a build, or fails with a job, that is not stored.
func (l *loop) register(ctx context.Context, batch []*deployment) {
	if l.o.Register == nil {
		return
	}
	var said []fleet.DeviceID
	for _, d := range batch {
		if slices.ContainsFunc(d.seen, isReport) {
			said = append(said, d.Device)
		}
	}
	if len(said) == 0 {
		return
	}
	err := l.persist(ctx, "reports of devices", func(ctx context.Context) error { return l.o.Register.Stored(ctx, said...) })
	if err != nil && ctx.Err() == nil {
		l.o.Log.Error("reports of devices not stored", "count", len(said), "err", err)
	}
}

// isReport reports whether the observation is a device's report of its build or of a job.
func isReport(o campaign.Observation) bool { return o.ELF != "" || o.Version != "" || o.Job != "" }

// saved marks the changes that the store accepted, and handles the refused ones.
func (l *loop) saved(ctx context.Context, batch []*deployment, stale []uuid.UUID) {
	refused := make(map[uuid.UUID]bool, len(stale))
	for _, id := range stale {
		refused[id] = true
	}
	for _, d := range batch {
		if refused[d.ID] {
			l.reread(ctx, d)
			continue
		}
		l.stored(d)
	}
}

func (l *loop) stored(d *deployment) {
	d.Revision++
	l.publish(d)
	d.events, d.seen, d.dirty, d.lazy = nil, nil, false, false
	if d.State.Final() {
		l.settle(d)
	}
}

// reread reads the row of a deployment that changed without the engine, and applies the
// observations to it again. The store may in fact have made this very change, and only the
// database's reply got lost.
func (l *loop) reread(ctx context.Context, d *deployment) {
	var row campaign.Deployment
	err := l.persist(ctx, "deployment", func(ctx context.Context) (err error) {
		row, err = l.o.Store.DeploymentByID(ctx, d.ID)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		l.o.Log.Warn("a deployment is gone", "deployment", d.ID, "device", d.Device, "err", err)
		d.camp.tally(d.Wave, d.State, -1)
		l.detach(d)
		return
	case row.Revision == d.Revision+1 && row.State == d.State && row.Attempt == d.Attempt && len(d.seen) > 0:
		l.stored(d)
		return
	}
	l.replace(d, row)
}

// replace replaces a deployment's row in memory.
func (l *loop) replace(d *deployment, row campaign.Deployment) {
	seen, from := d.seen, d.State
	d.Deployment = row
	d.events, d.seen, d.acts, d.dirty, d.lazy = nil, nil, nil, false, false
	d.camp.moved(d, from)
	l.settle(d)
	for _, o := range seen {
		if l.byID[d.ID] != d {
			return
		}
		l.observe(d, o)
	}
}

// persist calls the store until the store is available: while the database is away, the engine
// waits. It returns an error that concerns the row.
func (l *loop) persist(ctx context.Context, what string, do func(context.Context) error) error {
	defer l.e.stuck.Store(false)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || rowIsBad(err) {
			return err
		}
		l.e.stuck.Store(true)
		l.o.Log.Error("campaigns wait for the database", "what", what, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func rowIsBad(err error) bool {
	return errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrNotFound)
}

// act performs the actions that the stored changes require.
func (l *loop) act(ctx context.Context, batch []*deployment) {
	var revoked []uuid.UUID
	for _, d := range batch {
		if d.dirty {
			continue // changed again: that must be stored first
		}
		acts := d.acts
		d.acts = nil
		for _, a := range acts {
			switch a {
			case campaign.ActRevoke:
				revoked = append(revoked, d.ID)
			case campaign.ActProbe:
				l.probe(ctx, d)
			case campaign.ActVerify:
				l.verify(d)
			case actRestart:
				l.orderRestart(ctx, d)
			}
		}
	}
	l.revokeLinks(ctx, revoked)
}

// revokeLinks ends the links of deployments, and the downloads over them.
func (l *loop) revokeLinks(ctx context.Context, ids []uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	err := l.persist(ctx, "links", func(ctx context.Context) error {
		return l.o.Store.RevokeLinks(ctx, ids, l.now)
	})
	if err != nil && ctx.Err() == nil {
		l.o.Log.Error("links not revoked", "count", len(ids), "err", err)
	}
	l.o.Downloads.Revoke(ids...)
}
