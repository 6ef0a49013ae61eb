// runner QMP-SOCKET QEMU [ARGUMENT]...: the first process of a VM's container, in Go with godbus (write-a-runner.md).
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	name      = "io.stelia.Isolation1"
	grace     = 25 * time.Second
	pidfdOpen = 434 // the system call, on every architecture but alpha
)

// Vcpu is one entry of AttachVcpus.
type Vcpu struct {
	Index  uint32
	Thread int32
	Props  map[string]dbus.Variant
}

func check(what string, err error) {
	if err != nil {
		if refused, ok := err.(dbus.Error); ok {
			what += ": " + refused.Name
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(69) // the first process of the container: QEMU, which is paused, ends with it
	}
}

// retry tries for 30 s, because the daemon may be restarting and QEMU starting.
func retry(what string, try func() error) {
	deadline := time.Now().Add(30 * time.Second)
	err := try()
	for ; err != nil && time.Now().Before(deadline); err = try() {
		time.Sleep(100 * time.Millisecond)
	}
	check(what, err)
}

func start(command ...string) (*os.Process, dbus.UnixFD) {
	child := exec.Command(command[0], command[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	check("start "+command[0], child.Start())
	fd, _, errno := syscall.Syscall(pidfdOpen, uintptr(child.Process.Pid), 0, 0)
	if errno != 0 {
		check("pidfd_open", errno)
	}
	return child.Process, dbus.UnixFD(fd)
}

// uidOutside is this user's uid outside its user namespace, where the daemon is.
func uidOutside() string {
	file, err := os.Open("/proc/self/uid_map")
	check("open the uid map", err)
	defer file.Close()
	var inner, outer, count int
	for uid := os.Geteuid(); ; {
		_, err := fmt.Fscan(file, &inner, &outer, &count)
		check("read the uid map", err)
		if inner <= uid && uid < inner+count {
			return strconv.Itoa(outer + uid - inner)
		}
	}
}

// qmp runs these commands; the last one's answer goes to result.
func qmp(socket string, result any, commands ...string) error {
	connection, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	out, in := json.NewEncoder(connection), json.NewDecoder(connection)
	if err := in.Decode(&struct{}{}); err != nil { // the greeting
		return err
	}
	for _, command := range append([]string{"qmp_capabilities"}, commands...) {
		if err := out.Encode(map[string]string{"execute": command}); err != nil {
			return err
		}
		var answer struct{ Return, Error json.RawMessage }
		for answer.Return == nil { // the others are events
			if err := in.Decode(&answer); err != nil {
				return err
			} else if answer.Error != nil {
				return fmt.Errorf("%s: %s", command, answer.Error)
			}
		}
		if err := json.Unmarshal(answer.Return, result); command != "qmp_capabilities" && err != nil {
			return err
		}
	}
	return nil
}

func main() {
	socket := os.Args[1]
	daemon := os.Getenv("STELIA_SOCKET")
	if daemon == "" {
		daemon = "/run/stelia/runner/socket"
	}
	signals := make(chan os.Signal, 1) // PID 1 gets no signal without a handler
	signal.Notify(signals, syscall.SIGTERM)

	anchor, anchorFD := start("sleep", "infinity")
	var bus *dbus.Conn
	retry("connect to "+daemon, func() (err error) {
		if bus, err = dbus.Dial("unix:path=" + daemon); err != nil {
			return err
		}
		return bus.Auth([]dbus.Auth{dbus.AuthExternal(uidOutside())})
	})
	options := map[string]dbus.Variant{"anchor": dbus.MakeVariant(anchorFD)}
	var path dbus.ObjectPath
	var cgroup, state string
	manager := bus.Object(name, "/io/stelia/Isolation1")
	check("register", manager.Call(name+".Manager.RegisterInstance", 0, "", "", options).Store(&path, &cgroup))

	qemu, qemuFD := start(append(os.Args[2:], "-S", "-qmp", "unix:"+socket+",server=on,wait=off")...)
	var cpus []struct {
		Index  uint32            `json:"cpu-index"`
		Thread int32             `json:"thread-id"`
		Props  map[string]uint32 `json:"props"`
	}
	retry("ask QEMU", func() error { return qmp(socket, &cpus, "query-cpus-fast") })
	vcpus := []Vcpu{}
	for _, cpu := range cpus {
		props := map[string]dbus.Variant{}
		for key, number := range cpu.Props {
			props[key] = dbus.MakeVariant(number)
		}
		vcpus = append(vcpus, Vcpu{cpu.Index, cpu.Thread, props})
	}
	instance := bus.Object(name, path)
	attached := instance.Call(name+".Instance.AttachVcpus", 0, qemuFD, vcpus, map[string]dbus.Variant{})
	check("attach", attached.Err)
	check("read the state", instance.StoreProperty(name+".Instance.State", &state))
	if state != "isolated" && state != "contained" {
		check("attach", fmt.Errorf("the VM is %s", state))
	}
	check("start the guest", qmp(socket, &struct{}{}, "cont"))
	bus.Close()
	fmt.Fprintf(os.Stderr, "guest running, %s\n", state)

	go func() {
		<-signals
		time.AfterFunc(grace, func() { qemu.Kill() })
		if err := qmp(socket, &struct{}{}, "system_powerdown"); err != nil {
			fmt.Fprintln(os.Stderr, "power down:", err)
		}
	}()
	var status syscall.WaitStatus
	for pid := 0; pid != qemu.Pid; { // PID 1 reaps orphans too
		pid, _ = syscall.Wait4(-1, &status, 0, nil)
	}
	anchor.Kill()
	if status.Signaled() {
		os.Exit(128 + int(status.Signal()))
	}
	os.Exit(status.ExitStatus())
}
