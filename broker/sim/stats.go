package sim

import "sync/atomic"

// Stats counts the events of a fleet since it started. Connected and Activating are current
// values.
type Stats struct {
	Devices         int
	Booted          int64 // passed the OTA check, including by giving up
	Polls           int64
	PollFailures    int64
	ChunkedAnswers  int64 // OTA answers that a real device may read in part only
	Activating      int64 // show a code
	Activations     int64
	Connected       int64
	Connects        int64
	ConnectFailures int64
	Calls           int64 // tools executed
	Replies         int64
	Errors          int64 // error replies among those queued
	LostReplies     int64 // lost because there was no connection
	Dropped         int64 // MCP requests without an answer by the rules of 4.1
	Ignored         int64 // other messages that are not understood
	Crashes         int64
	Reboots         int64
	Uploads         int64
	Downloads       int64
	DownloadedBytes int64
	Upgrades        int64
	UpgradesFailed  int64
	Rollbacks       int64
	AudioSent       int64 // packets
	AudioHeard      int64 // packets
	AudioDropped    int64 // repeated, late or broken packets
}

type counters struct {
	booted, polls, pollFailures, chunkedAnswers atomic.Int64
	activating, activations                     atomic.Int64
	connected, connects, connectFailures        atomic.Int64
	calls, replies, errors, lostReplies         atomic.Int64
	dropped, ignored, crashes, reboots          atomic.Int64
	uploads, downloads, downloadedBytes         atomic.Int64
	upgrades, upgradesFailed, rollbacks         atomic.Int64
	audioSent, audioHeard, audioDropped         atomic.Int64
}

// Stats returns the current counts.
func (f *Fleet) Stats() Stats {
	c := &f.stats
	return Stats{
		Devices: len(f.devices), Booted: c.booted.Load(), Polls: c.polls.Load(), PollFailures: c.pollFailures.Load(),
		ChunkedAnswers: c.chunkedAnswers.Load(), Activating: c.activating.Load(), Activations: c.activations.Load(),
		Connected: c.connected.Load(), Connects: c.connects.Load(), ConnectFailures: c.connectFailures.Load(),
		Calls: c.calls.Load(), Replies: c.replies.Load(), Errors: c.errors.Load(), LostReplies: c.lostReplies.Load(),
		Dropped: c.dropped.Load(), Ignored: c.ignored.Load(), Crashes: c.crashes.Load(), Reboots: c.reboots.Load(),
		Uploads: c.uploads.Load(), Downloads: c.downloads.Load(), DownloadedBytes: c.downloadedBytes.Load(),
		Upgrades: c.upgrades.Load(), UpgradesFailed: c.upgradesFailed.Load(), Rollbacks: c.rollbacks.Load(),
		AudioSent: c.audioSent.Load(), AudioHeard: c.audioHeard.Load(), AudioDropped: c.audioDropped.Load(),
	}
}
