package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/fleet/postgres/embedded"
)

// singleRowCommits measures the rate of a program that commits one row per call to
// the rig's PostgreSQL, by the number of calls in flight.
func singleRowCommits(ctx context.Context, r *rig, d time.Duration) (map[int]reading, error) {
	all := make(map[int]reading)
	for _, n := range []int{1, 16, 64} {
		v, err := commitsOver(ctx, r.db.Config().ConnString(), r.postgres, n)
		if err != nil {
			return nil, err
		}
		all[n] = v.measure(n, d)
		v.stop()
	}
	return all, nil
}

// commitsOver commits a row for each of n in flight, over one connection each but
// at most 32: PostgreSQL has 60, and fleetd uses some.
func commitsOver(ctx context.Context, url string, server process, n int) (variant, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return variant{}, err
	}
	config.MaxConns = int32(min(n, 32))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return variant{}, err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bench_rows (id bigserial PRIMARY KEY, device text, tool text, arguments jsonb, at timestamptz)`)
	if err != nil {
		pool.Close()
		return variant{}, err
	}
	do := func(int) error {
		_, err := pool.Exec(ctx, `INSERT INTO bench_rows (device, tool, arguments, at) VALUES ($1, $2, $3, now())`,
			"02beef000001", "self.audio_speaker.set_volume", `{"volume":50}`)
		return err
	}
	return variant{do: do, calls: 1, processes: []process{server, self(ofLoad)}, stop: pool.Close}, nil
}

// startCommits starts a PostgreSQL for commitsOver.
func startCommits(ctx context.Context, dir string, n int) (variant, error) {
	pg, err := embedded.Start(ctx, embedded.Options{DataDir: filepath.Join(dir, "data")})
	if err != nil {
		return variant{}, err
	}
	stop := func() { _ = pg.Stop(context.WithoutCancel(ctx)) }
	p, err := postmaster(filepath.Join(dir, "data"))
	if err != nil {
		stop()
		return variant{}, err
	}
	v, err := commitsOver(ctx, pg.URL(), p, n)
	if err != nil {
		stop()
		return v, err
	}
	closePool := v.stop
	v.stop = func() { closePool(); stop() }
	return v, nil
}
