#!/usr/bin/env python3
# verify-ledger.py [--key KEY]... FILE.ledger...: the chain, the signed heads (by openssl), up to which entry KEY vouches, and each seat's switch-ins of other tasks, [least, most]
import argparse, base64, hashlib, json, os, subprocess, sys, tempfile, time
parser = argparse.ArgumentParser()
parser.add_argument("--key", action="append", default=[]), parser.add_argument("file", nargs="+")
asked, hashes, boot, seats, every, folder = parser.parse_args(), {}, "", {}, {}, tempfile.TemporaryDirectory()
faults, keys, ended, today, signed, vouched = [], [], [], None, 0, 0
try:
    for path in sorted(asked.file, key=os.path.basename):
        number = 0
        first = int(os.path.basename(path)[:20])
        for number, line in enumerate(open(path, "rb"), 1):
            seq, text, entry = first + number - 1, line[65:-1], json.loads(line[65:])  # the first entry of a segment names the hash before it
            before = entry["before"] if seq == first else hashes[seq - 1]
            hashes[seq] = hashlib.sha256(before.encode() + b"\n" + text).hexdigest()
            known = hashes.get(seq - 1, before if len(hashes) == 1 else None)
            if line != hashes[seq].encode() + b" " + text + b"\n" or (entry["seq"], known) != (seq, before):
                sys.exit(f"{path}: line {number}: number {seq} is not what was written, or something before it is missing")
            day, last = today, seq - 1
            if (today := time.strftime("%Y-%m-%d", time.gmtime(entry["at"] // 1000000))) != day and day: ended.append((day, last))
            for event in entry.get("events", []):
                if (boot := event["id"] if event["event"] == "boot" else boot) and event["event"] == "opened": seats[event["seat"]] = every.setdefault(json.dumps([boot, event["seat"], event["threads"]]), {**event, "bound": {}})
                if event["event"] in ("key", "head"):
                    keys.append(event["key"])
                    if asked.key and event["key"] not in asked.key: faults.append(f"number {seq} names another key: {event['key']}")
                if event["event"] == "head":
                    files = {"text": ("stelia-ledger head 1\n%(day)s\n%(seq)d\n%(hash)s\n" % event).encode(), "sig": base64.b64decode(event["signature"])}
                    files["key"] = bytes.fromhex("302a300506032b6570032100") + base64.b64decode(event["key"])  # DER of RFC 8410
                    for name in files: open(os.path.join(folder.name, name), "wb").write(files[name])
                    openssl = "openssl pkeyutl -verify -pubin -keyform DER -inkey key -rawin -in text -sigfile sig"
                    good = not subprocess.run(openssl, shell=True, cwd=folder.name, stdout=sys.stderr).returncode
                    good &= signed < event["seq"] < seq and hashes.get(event["seq"], event["hash"]) == event["hash"] and event["key"] in (asked.key or keys)
                    print("head", event["day"], event["seq"], "good" if good else "BAD")
                    if not good: faults.append(f"the head of {event['day']} is not good")
                    elif (signed := event["seq"]) in hashes and asked.key: vouched, ended = signed, [of for of in ended if of[1] > signed]
            for reading in [event["last"] for event in entry.get("events", []) if event.get("last")] + entry.get("readings", []):
                seat = seats[reading["s"]]
                for thread, ran in ((thread, ran or {"switches": [0, 2**64]}) for thread, ran in reading.get("b", []) if ran or thread == {"id": 0, "start": 1}):  # tasks of a container that ended ran any number of times
                    seat["bound"].setdefault(str(thread), [[0, 0] if "to" in seat else ran["switches"]])[1:] = [ran["switches"]]
                seat["to"] = seat.get("to", reading["n"])[:3] + reading["n"][:3]
except Exception as error:  # a line that is cut or not of a ledger, a name that is no number, a file that cannot be read
    sys.exit(f"{path}: line {number}: this cannot be read as a ledger: {error!r}")
for (cpu, own, more, cpu2, own2, more2), seat in ((seat["to"], seat) for seat in every.values() if "to" in seat):
    least = cpu2 - cpu - (own2 + more2 - own) - sum(bound[-1][1] - bound[0][0] for bound in seat["bound"].values())
    most = cpu2 - cpu - (own2 - own - more) - sum(max(bound[-1][0] - bound[0][1], 0) for bound in seat["bound"].values())
    print(seat["vm"], seat["cpus"], [max(least, 0), max(most, 0)])
if not asked.key: print("no --key: nobody vouches for this ledger, which names the keys", *dict.fromkeys(keys), file=sys.stderr)
elif vouched and not ended: print(f"{' or '.join(asked.key)} vouches up to entry {vouched} of {max(hashes)}")
else: faults.append(f"no such key vouches {'for any entry' if not vouched else 'after entry %d, which is before the end of %s' % (vouched, ended[0][0])}")
sys.exit("\n".join(faults) if faults else 0)
