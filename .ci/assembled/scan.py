import sys; W=sys.argv[1]; SEED=int(sys.argv[2]); SEC=float(sys.argv[3]); sys.argv=sys.argv[:1]
exec(open('/tmp/desccheck.py').read().split('if __name__')[0])
import test_attention as T
random.seed(SEED); V=sorted(T.VIEWS); t0=time.time(); n=0; bad=0; kernels=0; emu=0
while time.time()-t0<SEC:
    ex=((random.randint(1,300),random.randint(1,300)),random.choice([20,20,64,128]),random.choice([(1,1),(2,1),(2,2),(4,2)]),tuple(random.choice(V) for _ in range(4)),random.choice(sorted(T.MASKS)),(random.randint(-2,300),random.randint(-2,300)),random.random()<.5,random.choice([None,0.,-1.,2.]),random.random()<.5,random.random()<.5,random.choice(["float16","bfloat16"]))
    try: r=descs(ex,W)
    except Exception as e: print("EXC",type(e).__name__,str(e)[:120]); continue
    n+=1
    for name,sh,b in r:
        kernels+=1
        e={k:v for k,v in b.items() if k[0]=="EMU"}; o={k:v for k,v in b.items() if k[0]!="EMU"}
        emu+=bool(e)
        if e and emu<3: print("emu",name,list(e)[0])
        if o: bad+=1; print("BAD",W,name,ex,"shared",sh,list(o.items())[:3],flush=True)
print(W,"examples",n,"kernels",kernels,"bad",bad,"not emulated",emu)
