package device

import (
	"context"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/web/console/pages"
)

// reported shows the device's new report, on the tabs that contain it.
func (v *deviceView) reported(ctx context.Context, kind fleet.EventKind, u *pages.Updates) error {
	c, err := v.report(ctx, kind)
	if c != nil && err == nil {
		u.Patches = append(u.Patches, c)
	}
	if err != nil || kind != fleet.EventVitals || v.tab != TabConfiguration {
		return err
	}
	// A heartbeat may contain another configuration version than the page.
	config, err := v.server.deviceConfig(ctx, fleet.Device{ID: v.id})
	if err == nil && config.Running != nil {
		err = v.reported(ctx, fleet.EventConfig, u)
	}
	return err
}

func (v *deviceView) report(ctx context.Context, kind fleet.EventKind) (templ.Component, error) {
	health := v.tab == "health"
	switch {
	case kind == fleet.EventJob && (health || v.tab == "firmware"):
		jobs, err := v.server.deviceJobs(ctx, v.id)
		if err != nil || !health {
			return jobs.View(), err
		}
		jobs.Always, err = v.server.reporting(ctx, v.id)
		return jobs.View(), err
	case kind == fleet.EventVitals && !health && v.tab != "", kind == fleet.EventConfig && v.tab != TabConfiguration,
		kind == fleet.EventJob:
		return nil, nil
	}
	d, err := v.server.Devices.Device(ctx, v.id)
	if err != nil {
		return nil, err
	}
	if kind == fleet.EventConfig {
		config, err := v.server.deviceConfig(ctx, d)
		return config.View(), err
	}
	vitals, err := v.server.deviceVitals(ctx, d)
	if health {
		return vitals.View(), err
	}
	return vitals.Line(), err
}
