package sim

import (
	"context"
	"slices"
	"strconv"
)

// An order is the image that a device must install, and the job name for its reports: "" for
// stock firmware, which does not report.
type order struct{ url, job string }

// An upgradeJob survives the restart: the new build reports the outcome of the upgrade.
type upgradeJob struct{ name, elf string }

// toolset returns the tools that the firmware registers. With [Options.Reports] the upgrade tool
// is that of the included firmware, as far as these devices implement it: they report, but check
// no more than stock firmware does.
func (d *Device) toolset() []*tool {
	tools := d.board.toolset(d.running().build.version)
	if !d.fleet.options.Reports {
		return tools
	}
	tools = slices.Clone(tools)
	for i, t := range tools {
		if t.name == "self.upgrade_firmware" {
			tools[i] = reportingUpgrade
		}
	}
	return tools
}

var reportingUpgrade = newReportingUpgrade()

func newReportingUpgrade() *tool {
	t := &tool{
		name: "self.upgrade_firmware", description: "Upgrade firmware from a specific URL.", userOnly: true,
		params: []param{textParam("url"), textParam("sha256").or(argument{}), intParam("size", 0, 16<<20).or(argument{}),
			textParam("job").or(argument{})},
		run: upgradeAndReport,
	}
	t.json = t.marshal()
	return t
}

// upgradeAndReport answers before the upgrade begins: the upgrade is queued behind the answer.
func upgradeAndReport(_ context.Context, d *Device, args []argument) (result, error) {
	o := order{url: args[0].s, job: args[3].s}
	if d.faults.has(FaultSilentAccept) {
		return result{}, errNoReply
	}
	d.report(o.job, "accepted", "")
	d.schedule(func(context.Context) {
		d.schedule(func(ctx context.Context) { d.upgrade(ctx, o) })
	})
	return result{text: `{"job":` + string(appendQuoted(nil, o.job)) + `,"state":"accepted"}`}, nil
}

// report sends notifications/job.
func (d *Device) report(job, state, more string) {
	if job == "" || !d.fleet.options.Reports {
		return
	}
	b := append([]byte(`"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/job","params":{"job":`),
		appendQuoted(nil, job)...)
	b = append(b, `,"kind":"upgrade","state":"`+state+`"`+more+`}}`...)
	d.publish(d.message(string(b)))
}

func (d *Device) reportFailure(job, code string, err error) {
	d.report(job, "failed", `,"code":"`+code+`","reason":`+string(appendQuoted(nil, err.Error())))
}

// remember stores the job for the time after the restart.
func (d *Device) remember(o order, b *build) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.job = upgradeJob{o.job, b.elf}
}

// reportOutcome reports the outcome of the upgrade after the device has reconnected to the
// broker.
func (d *Device) reportOutcome() {
	d.mu.Lock()
	job, elf := d.job, d.flash.slots[d.flash.current].build.elf
	d.job = upgradeJob{}
	d.mu.Unlock()
	if job.elf == elf {
		d.report(job.name, "done", "")
		return
	}
	d.report(job.name, "failed", `,"code":"rolled_back","reason":"the new image restarted before it had proved itself"`)
}

// A progressReport reports the progress of a download after each quarter.
type progressReport struct {
	d           *Device
	job         string
	total, have int64
}

func (p *progressReport) Write(b []byte) (int, error) {
	before := p.have * 4 / p.total
	p.have += int64(len(b))
	if now := p.have * 4 / p.total; now > before {
		p.d.report(p.job, "progress", `,"percent":`+strconv.FormatInt(25*now, 10))
	}
	return len(b), nil
}
