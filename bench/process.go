package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A process is one part of a run whose resources are counted separately.
type process struct {
	name     string
	pid      int
	children bool // with its children, as of PostgreSQL
}

// Names of processes, which head the columns of the tables.
const (
	ofFleetd   = "fleetd"
	ofPostgres = "PostgreSQL"
	ofBroker   = "Mosquitto"
	ofHTTP     = "net/http"
	ofLoad     = "load"
	ofDevices  = "devices"
)

// self returns this process.
func self(name string) process { return process{name: name, pid: os.Getpid()} }

// A usage is the resources that a process has used since it started.
type usage struct {
	User, System float64 // processor, µs
	Switches     float64 // times that a thread went to sleep
	Reads        float64 // system calls that read, without those of recv
	Writes       float64 // system calls that write, without those of send
}

func (u usage) cpu() float64 { return u.User + u.System }

// each returns the usage per operation, of n operations since an earlier usage.
func (u usage) each(earlier usage, n float64) usage {
	return usage{(u.User - earlier.User) / n, (u.System - earlier.System) / n, (u.Switches - earlier.Switches) / n,
		(u.Reads - earlier.Reads) / n, (u.Writes - earlier.Writes) / n}
}

func usages(processes []process) map[string]usage {
	all := make(map[string]usage)
	for _, p := range processes {
		all[p.name] = p.usage()
	}
	return all
}

// usage sums what the process and its children have used. Ended children count
// in the processor times of their parent, and are missing in the rest.
func (p process) usage() (sum usage) {
	pids := []string{strconv.Itoa(p.pid)}
	if p.children {
		list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.pid))
		pids = append(pids, strings.Fields(string(list))...)
	}
	for _, pid := range pids {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat") // a child may have ended meanwhile
		user, system := processorTimes(string(stat), p.children)
		sum.User += user
		sum.System += system
		io := procFields("/proc/" + pid + "/io")
		sum.Reads += io["syscr"]
		sum.Writes += io["syscw"]
		threads, _ := filepath.Glob("/proc/" + pid + "/task/*/status")
		for _, t := range threads {
			sum.Switches += procFields(t)["voluntary_ctxt_switches"]
		}
	}
	return sum
}

// tick is the unit of /proc/PID/stat in microseconds: USER_HZ is 100 on Linux.
const tick = 10_000

// processorTimes reads /proc/PID/stat, in microseconds.
func processorTimes(stat string, ended bool) (user, system float64) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // a name may have spaces and parentheses
	if len(f) < 15 {
		return 0, 0
	}
	number := func(i int) float64 { n, _ := strconv.ParseFloat(f[i], 64); return n * tick }
	user, system = number(11), number(12)
	if ended {
		user, system = user+number(13), system+number(14)
	}
	return user, system
}

// procFields reads the numbers of a file of lines "name: number".
func procFields(path string) map[string]float64 {
	data, _ := os.ReadFile(path)
	fields := make(map[string]float64)
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if f := strings.Fields(value); len(f) > 0 {
			if n, err := strconv.ParseFloat(f[0], 64); err == nil {
				fields[name] = n
			}
		}
	}
	return fields
}

// rss returns the resident memory of a process in KiB.
func rss(pid int) float64 { return procFields(fmt.Sprintf("/proc/%d/status", pid))["VmRSS"] }

// busy returns the processor time that the whole machine has used, in
// microseconds.
func busy() (used float64) {
	data, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(data), "\n")
	for i, f := range strings.Fields(first) {
		if i >= 1 && i <= 8 && i != 4 && i != 5 { // cpu user nice system idle iowait irq softirq steal
			n, _ := strconv.ParseFloat(f, 64)
			used += n * tick
		}
	}
	return used
}
